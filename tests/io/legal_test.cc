// Values of flags and of fields: what is legal is read, everything else is refused by its label,
// its text and the legal set.
#include "io/legal.h"

#include "io/media_time.h"
#include "io/nearest.h"
#include "tests/io/io_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

GivenText steps(const std::string& text) { return {text, "--steps", "1 ... 1000"}; }

TEST(Legal, NumbersLieInTheirRange) {
  EXPECT_EQ(steps("1").whole_number(), 1);
  EXPECT_EQ(steps("1000").whole_number(), 1000);
  EXPECT_EQ(steps("2.5").number(), 2.5);
  const auto whole = [](const char* text) {
    return error_of([&] { (void)steps(text).whole_number(); }, ErrorKind::kUsage);
  };
  const auto real = [](const char* text) {
    return error_of([&] { (void)steps(text).number(); }, ErrorKind::kUsage);
  };
  EXPECT_EQ(whole("0"), "--steps is 0, legal: 1 ... 1000; nearest: 1");
  EXPECT_EQ(real("1000.5"), "--steps is 1000.5, legal: 1 ... 1000; nearest: 1000");
  EXPECT_EQ(whole("-99999999999999999999"),
            "--steps is -99999999999999999999, legal: 1 ... 1000; nearest: 1");
  for (const char* text : {"", "2.0", "1e3", "0x10", "3 "})
    EXPECT_EQ(whole(text),
              "--steps is '" + std::string(text) + "', legal: a whole number, 1 ... 1000");
  for (const char* text : {"", "nan", "inf", "1e999", "3 s"})
    EXPECT_EQ(real(text),
              "--steps is '" + std::string(text) + "', legal: a finite number, 1 ... 1000");
}

TEST(Legal, RatesAreFractionsAndThoseOfNtscAreExact) {
  const auto fps = [](const char* text) { return GivenText{text, "--fps", "0.1 ... 1000"}; };
  for (const auto& [text, num, den] : {std::tuple{"30000/1001", 30000, 1001},
                                       {"23.976", 24000, 1001},
                                       {"24000/1001", 24000, 1001},
                                       {"29.97", 30000, 1001},
                                       {"59.94", 60000, 1001},
                                       {"119.88", 120000, 1001},
                                       {"23.976024", 24000, 1001},
                                       {"14.985", 15000, 1001},
                                       {"24", 24, 1},
                                       {"24.0", 24, 1},
                                       {"12.5", 25, 2},
                                       {"25/2", 25, 2},
                                       {"10/3", 10, 3},
                                       {"0.1", 1, 10},
                                       {"1000", 1000, 1},
                                       {"23.98", 1199, 50},
                                       {"29.9", 299, 10},
                                       {"7.123", 7123, 1000},
                                       {"100/4", 25, 1}}) {
    const double value = fps(text).rate();
    const MediaRate rate = media_rate(value);
    EXPECT_EQ(rate.num, num) << text;
    EXPECT_EQ(rate.den, den) << text;
    EXPECT_DOUBLE_EQ(value, double(num) / den) << text;
  }
  for (const char* text : {"", "/", "30/", "/2", "30/0", "0/5", "-30/1", "30/-1", "3e1/1", "1/2/3",
                           "30 / 1", "a/b", "1234567890/1"})
    EXPECT_TRUE(
        contains(error_of([&] { (void)fps(text).rate(); }, ErrorKind::kUsage), "--fps is '"))
        << text;
  EXPECT_EQ(error_of([&] { (void)fps("1/11").rate(); }, ErrorKind::kUsage),
            "--fps is 1/11, legal: 0.1 ... 1000; nearest: 0.1");
  for (const char* text : {"0x1p3", " 24", "2_4", "1,5"})
    EXPECT_FALSE(error_of([&] { (void)fps(text).number(); }, ErrorKind::kUsage).empty()) << text;
}

TEST(Legal, TextsAreOneOfTheirSet) {
  const auto rng = [](const char* text) { return GivenText{text, "--rng", "portable|torch-cpu"}; };
  EXPECT_EQ(rng("torch-cpu").one_of(), "torch-cpu");
  EXPECT_EQ(error_of([&] { rng("torchcpu").one_of(); }, ErrorKind::kUsage),
            "--rng is 'torchcpu', legal: portable|torch-cpu; did you mean torch-cpu?");
  EXPECT_EQ(error_of([&] { rng("").one_of(); }, ErrorKind::kUsage),
            "--rng is '', legal: portable|torch-cpu");
  EXPECT_EQ(split("a||b c|", '|'), (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(did_you_mean(""), "");
}

}  // namespace
}  // namespace weft::test
