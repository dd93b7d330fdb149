// Values of flags and of fields: what is legal is read, everything else is refused by its label,
// its text and the legal set.
#include "io/legal.h"

#include "io/nearest.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

template <class Read>
std::string legal_refusal(Read read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

GivenText steps(const std::string& text) { return {text, "--steps", "1 ... 1000"}; }

TEST(Legal, NumbersLieInTheirRange) {
  EXPECT_EQ(steps("1").whole_number(), 1);
  EXPECT_EQ(steps("1000").whole_number(), 1000);
  EXPECT_EQ(steps("2.5").number(), 2.5);
  const auto whole = [](const char* text) {
    return legal_refusal([&] { (void)steps(text).whole_number(); });
  };
  const auto real = [](const char* text) {
    return legal_refusal([&] { (void)steps(text).number(); });
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

TEST(Legal, TextsAreOneOfTheirSet) {
  const auto rng = [](const char* text) { return GivenText{text, "--rng", "portable|torch-cpu"}; };
  EXPECT_EQ(rng("torch-cpu").one_of(), "torch-cpu");
  EXPECT_EQ(legal_refusal([&] { rng("torchcpu").one_of(); }),
            "--rng is 'torchcpu', legal: portable|torch-cpu; did you mean torch-cpu?");
  EXPECT_EQ(legal_refusal([&] { rng("").one_of(); }), "--rng is '', legal: portable|torch-cpu");
  EXPECT_EQ(split("a||b c|", '|'), (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(did_you_mean(""), "");
}

}  // namespace
}  // namespace weft
