#include "io/text/split_pattern.h"

#include "io/text/utf8.h"
#include "tests/io/byte_bpe_testing.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const SplitPattern::TimeLimit limit(text.size());
  std::vector<std::string> out;
  for (const auto& [begin, end] : SplitPattern::from_regex(pattern, "test").find_all(text, limit))
    out.push_back(text.substr(begin, end - begin));
  return out;
}
using Strings = std::vector<std::string>;

TEST(SplitPattern, FindsWordsAsQwenSplitsThem) {
  EXPECT_EQ(matches(kQwenPattern, "It'S 12  a\xc3\xa9\n\n  ok!?\r\n \xe7\x8c\xab"),
            (Strings{"It", "'S", " ", "1", "2", " ", " a\xc3\xa9", "\n\n", " ", " ok", "!?\r\n",
                     " \xe7\x8c\xab"}));
}

TEST(SplitPattern, EmptyMatchesNeverTouchTheOneBefore) {
  EXPECT_EQ(matches("a*", "ba\xc3\xa9"), (Strings{"", "a", ""}));
  EXPECT_EQ(matches("a*", ""), Strings{""});
  EXPECT_EQ(matches("x", ""), Strings{});
}

// Other libraries of regular expressions read these patterns differently.
TEST(SplitPattern, ReadsClassesAsOniguruma) {
  EXPECT_EQ(matches("\\s", "\xe1\xa0\x8e\xe2\x80\x8b\xc2\x85\x1c"), Strings{"\xc2\x85"});
  EXPECT_EQ(matches("[\\s]", "\xe1\xa0\x8e\xc2\xa0"), Strings{"\xc2\xa0"});
  EXPECT_EQ(matches("\\w+",
                    "a\xcc\x81\xe2\x80\xbf"
                    "1\xc2\xb2\xe2\x81\xb4"),
            Strings{"a\xcc\x81\xe2\x80\xbf"
                    "1\xc2\xb2"});
  EXPECT_EQ(matches("\\W", "a-"), Strings{"-"});
  EXPECT_EQ(matches("[\\w]", "a-\xc2\xb2"), Strings{"a"});
  EXPECT_EQ(matches("\\p{Han}", "\xe6\xbc\xa2\xe3\x80\x81"), Strings{"\xe6\xbc\xa2"});
  EXPECT_EQ(matches("\\v", "\n\x0b"), Strings{"\x0b"});
  EXPECT_EQ(matches("\\u4e00\\x41\\x{1F680}",
                    "\xe4\xb8\x80"
                    "A\xf0\x9f\x9a\x80")
                .size(),
            1u);
  EXPECT_EQ(matches("^a|b$|.", "ab\nab"), (Strings{"a", "b", "a", "b"}));
  EXPECT_EQ(matches("(?i:'s|k)", "'\xc5\xbf\xe2\x84\xaa"), (Strings{"'\xc5\xbf", "\xe2\x84\xaa"}));
}

// Both read a group's name, each as its language spells it.
TEST(SplitPattern, ReadsThoseOfPython) {
  const SplitPattern::TimeLimit limit(16);
  const SplitPattern pattern = SplitPattern::from_python("(?P<digit>\\d)-(?P=digit)", "test");
  const auto found = pattern.find_all("1-2 3-3 44", limit);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].begin == 4 && found[0].end == 7);
  expect_error(ErrorKind::kModel, "test: the pattern cannot be read",
               [] { SplitPattern::from_regex("(?P<digit>\\d)", "test"); });
  expect_error(ErrorKind::kModel, "test: the pattern cannot be read",
               [] { SplitPattern::from_python("(?{x})", "test"); });
}

TEST(SplitPattern, LiteralsMeanThemselves) {
  const std::string all = "\\^$.|?*+()[]{}-#&\n\"\xc3\xa9";
  const auto found = SplitPattern::from_literal(all, "test")
                         .find_all("x" + all + "x", SplitPattern::TimeLimit(all.size()));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].begin, 1u);
  EXPECT_EQ(found[0].end, 1 + all.size());
}

TEST(SplitPattern, NamesWhatItDoesNotRead) {
  const std::pair<const char*, const char*> cases[] = {{"", "has 0 bytes"},
                                                       {"\\1", "invalid backref"},
                                                       {"\\p{L", "cannot be read"},
                                                       {"\\p{a b}", "property name {a b}"},
                                                       {"\\p{Nothing}", "property name {Nothing}"},
                                                       {"(?P<n>a)", "undefined group option"},
                                                       {"(*FAIL)a", "cannot be read"},
                                                       {"(?{a})", "cannot be read"},
                                                       {"(?s:a)", "undefined group option"},
                                                       {"(?<a>\\g<a>)", "never ending recursion"},
                                                       {"a{3,100001}", "too big number"},
                                                       {"\\xe9", "too short multibyte"},
                                                       {"\\u12", "cannot be read"},
                                                       {"\\", "end pattern at escape"},
                                                       {"(a", "unmatched parenthesis"},
                                                       {"[a", "premature end of char-class"},
                                                       {"*", "target of repeat operator"}};
  for (const auto& [pattern, part] : cases)
    expect_error(ErrorKind::kModel, part, [&] { SplitPattern::from_regex(pattern, "test"); });
  expect_error(ErrorKind::kModel, "bytes; legal are",
               [] { SplitPattern::from_regex(std::string(9000, 'a'), "test"); });
}

TEST(SplitPattern, PatternsThatExplodeAreStopped) {
  const std::string text = std::string(5000, 'a') + "\nb c";
  for (const char* pattern : {"(a|a)*b", "(a*)*b", "(a+a+)+b", "(a|aa)+c", "(a|aa)+$c"})
    expect_error(ErrorKind::kModel, "takes too long", [&] { matches(pattern, text); });
}

// One class is repeated at every position of the text: there are few retries, but each runs far.
TEST(SplitPattern, LongWaysTakeTime) {
  const std::string text = std::string(50'000, ' ') + "ax";
  expect_error(ErrorKind::kModel, "takes too long", [&] { matches("\\s*x", text); });
}

// A run of white space costs as many retries as it has characters.
TEST(SplitPattern, LongRunsAreMatched) {
  const std::string spaces(1'000'000, ' ');
  EXPECT_EQ(matches(kQwenPattern, spaces + " a\n"), (Strings{spaces, " a", "\n"}));
}

TEST(Utf8, IsWhatDecodesWithoutLoss) {
  for (const char* text : {"", "a", "\xc3\xa4", "\xe2\x82\xac", "\xef\xbf\xbd", "\xf0\x9f\x9a\x80"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text :
       {"\xff", "a\xc3", "\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

TEST(Utf8, IncompleteTailIsWhatMoreBytesCanComplete) {
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint32_t n = random() % 5; n > 0; --n)
      text += "a\x80\xbf\x9f\xa0\xc3\xe0\xe7\xed\xf0\xf4\xff"[random() % 12];
    // Finds the longest ill-formed end that some further bytes turn into a single character.
    size_t expected = 0;
    for (size_t tail = 1; tail <= std::min<size_t>(3, text.size()); ++tail)
      for (const char* rest : {"\x80", "\x80\x80", "\x80\x80\x80", "\xa0\x80", "\x90\x80\x80"}) {
        const auto points = decode_utf8(text.substr(text.size() - tail) + rest);
        if (points.size() == 1 && points[0] != 0xfffd) expected = tail;
      }
    ASSERT_EQ(incomplete_utf8_tail(text), expected) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace weft::test
