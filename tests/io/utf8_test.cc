// Texts that users write, and paths of any bytes as records have them.
#include "io/text/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "io/json.h"
#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::string text_refusal(std::string_view bytes) {
  return error_of([&] { user_text(bytes, "a.txt"); }, ErrorKind::kUsage);
}

TEST(UserText, MarksAreDroppedAndLineEndsAreOne) {
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(user_text(mark + "a\r\nb\r\n", ""), "a\nb\n");
  EXPECT_EQ(user_text(mark + "a\n" + mark + "b", ""), "a\nb") << "files that were joined";
  EXPECT_EQ(user_text("a" + mark + "b\rc\r", ""), "a" + mark + "b\rc\r");
  for (const char* same : {"", "größer", "红球\n", "\xf0\x9f\x8e\x88"})
    EXPECT_EQ(user_text(same, ""), same);
}

TEST(UserText, OtherEncodingsAreRefusedByLineAndByte) {
  using std::string_view_literals::operator""sv;
  for (const auto& [bytes, message] :
       {std::pair{"gr\xfcn"sv, "a.txt line 1: byte 3 is 0xfc, which is not UTF-8; legal: "},
        {"a\n\nball, \xb5\xcd"sv, "a.txt line 3: byte 7 is 0xb5"},  // GBK
        {"a\n\xe7\xba"sv, "a.txt line 2: byte 1 is 0xe7"},          // a character that is cut
        {"\xc0\xaf"sv, "byte 1 is 0xc0"},                           // an overlong form
        {"\xed\xa0\x80"sv, "byte 1 is 0xed"},                       // a surrogate
        {"a\0b"sv, "a.txt line 1: byte 2 is NUL"},                  // UTF-16 without a mark
        {"\xff\xfe"
         "a\0"sv,
         "a.txt is in UTF-16 (iconv -f UTF-16 "},
        {"\xfe\xff\0a"sv, "a.txt is in UTF-16 "},
        {"\xff\xfe\0\0a\0\0\0"sv, "a.txt is in UTF-32 "},
        {"\0\0\xfe\xff\0\0\0a"sv, "a.txt is in UTF-32 "}})
    EXPECT_TRUE(contains(text_refusal(bytes), message));
}

TEST(PathText, IsUtf8AndGivesEveryPathBack) {
  EXPECT_EQ(path_text("/a/größer.mp4"), "/a/größer.mp4");
  EXPECT_EQ(path_text("gr\xfcn"), "gr\\xfcn");
  EXPECT_EQ(path_text("gr\\xfcn"), "gr\\x5cxfcn");
  EXPECT_EQ(path_text("C:\\xray\\x"), "C:\\xray\\x");
  EXPECT_EQ(path_of_text("a\\x2cb\\x00\\xFC\\x"), "a,b\\x00\\xFC\\x");
  // Bytes that are likely to meet in an escape.
  const std::string letters = "\\\\x5cf0/a\xfc\xc3\xbc\xe7\x80";
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string path;
    for (size_t length = random() % 12; path.size() < length;)
      path += letters[random() % letters.size()];
    const std::string text = path_text(path);
    ASSERT_EQ(path_of_text(text), path) << text;
    ASSERT_EQ(user_text(text, ""), text);
    ASSERT_EQ(path_text(text) == text,
              text.find("\\x") == std::string::npos || path_of_text(text) == text)
        << text;
  }
}

TEST(PathText, JsonOfAnyBytesIsJson) {
  const Json object{{"output", "gr\xfcn"}, {"k\xff", "ü"}};
  EXPECT_EQ(object.dump(), R"({"k\\xff":"ü","output":"gr\\xfcn"})");
  EXPECT_EQ(object.dump_in_order(), R"({"output":"gr\\xfcn","k\\xff":"ü"})");
}

TEST(Utf8, BeginningsEndAtACharacter) {
  for (const auto& [bytes, beginning] : {std::pair{0, ""},
                                         {1, "a"},
                                         {2, "a"},
                                         {3, "aü"},
                                         {4, "aü"},
                                         {5, "aü"},
                                         {6, "aü红"},
                                         {9, "aü红"}})
    EXPECT_EQ(utf8_beginning("aü红", static_cast<size_t>(bytes)), beginning) << bytes;
}

TEST(Utf8, WordsHaveLettersOfAnyScript) {
  for (const char32_t c : U"aZ7üßж红球あकि٣") EXPECT_TRUE(c == 0 || is_word(c)) << uint32_t{c};
  for (const char32_t c : U" _-/.\u00a0\u202e\u2028\ufeff\ufffd🎈")
    EXPECT_FALSE(is_word(c)) << uint32_t{c};
}

}  // namespace
}  // namespace weft::test
