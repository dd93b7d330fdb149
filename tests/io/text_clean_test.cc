#include "io/text/text_clean.h"

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/text/html.h"
#include "io/text/utf8.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

TEST(TextClean, GoldenTextsAreEqual) {
  const auto spec = read_json_file("tests/golden/text_clean/case.json");
  ASSERT_EQ(spec.at("texts").size(), spec.at("cleaned").size());
  ASSERT_GT(spec.at("texts").size(), 10u);
  for (size_t i = 0; i < spec["texts"].size(); ++i)
    EXPECT_EQ(clean_prompt(spec["texts"][i].get<std::string>()), spec["cleaned"][i]) << i;
}

// Texts and their results from ftfy 6.3.1 (fix_encoding=False) and html.unescape of Python 3.11.
// They exercise every step, and steps that act on the results of others.
const std::pair<std::string, std::string> kCases[] = {
    {std::string("&notanentity;", 13),
     "\xc2\xac"
     "anentity;"},
    {std::string("P&EACUTE;REZ BUNDESSTRA&SZLIG;E", 31), "P\xc3\x89REZ BUNDESSTRASSE"},
    {std::string("&nTILDE; &NTILDE;", 17), "&nTILDE; \xc3\x91"},
    {std::string("a &lt b &LT c &AMP; &amp;amp;amp;lt;", 36), "a < b < c & <"},
    {std::string("1 <b> &eacute;\x0a&eacute; &amp;amp;amp;eacute;", 44),
     "1 <b> \xc3\xa9 \xc3\xa9 &amp;eacute;"},
    {std::string("x &eacute;\x0athen < &amp;amp;lt;\x0a&amp;amp;amp;lt;", 47),
     "x \xc3\xa9 then < &lt; &amp;lt;"},
    {std::string("&#59; &#x3b; &#12ab; &#; &#x; &#xZZ;", 36), "; ; ab; &#; &#x; &#xZZ;"},
    {std::string("&#128;&#x81;&#x9F;&#0;&#13;&#11;&#xD83D;&#xDE00;&#1114112;&#99999999999999999999;"
                 "&#xfffe;&#xfdd0;.",
                 98),
     "\xe2\x82\xac\xc2\x81\xc5\xb8\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd."},
    {std::string("\xc2\x80\xc2\x93\xc2\x81\xc2\x85|", 9), "\xe2\x82\xac\"\xc2\x81\xe2\x80\xa6|"},
    {std::string("\x1b[31mred\x1b[0;1m \x1b[\xd9\xa3;m \x1b[3 \x1b[mx \x1b[31\x07", 36),
     "red [3 x [31"},
    {std::string("a\x0d\x0a b\x0d"
                 "c\xe2\x80\xa8"
                 "d\xe2\x80\xa9"
                 "e\xc2\x85"
                 "f",
                 18),
     "a b c d e\xe2\x80\xa6"
     "f"},
    {std::string("\xc4\xb2\xc4\xb3\xc5\x89\xc7\x84\xc7\x85\xc7\x86\xc7\x87\xc7\x8c\xc7\xb1\xc7\xb3"
                 "\xef\xac\x80\xef\xac\x83\xef\xac\x85\xef\xac\x86",
                 32),
     "IJij'nD\xc5\xbd"
     "D\xc5\xbe"
     "d\xc5\xbeLJnjDZdzffffi\xc5\xbftst"},
    {std::string("\xef\xbc\xa1\xef\xbc\x81\xef\xbc\x82\xef\xbc\x87\xef\xbd\xb6\xef\xbe\x9e "
                 "\xef\xbf\xa6\xef\xbf\xa3 \xef\xbe\xa1\xe3\x80\x80|",
                 33),
     "A!\"'\xe3\x82\xac \xe2\x82\xa9 \xcc\x84 \xe1\x84\x80 |"},
    {std::string("\xca\xbc\xe2\x80\x98\xe2\x80\x99\xe2\x80\x9a\xe2\x80\x9b "
                 "\xe2\x80\x9c\xe2\x80\x9d\xe2\x80\x9e\xe2\x80\x9f \xe2\x80\xb9\xe2\x80\xba",
                 34),
     "''''' \"\"\"\" \xe2\x80\xb9\xe2\x80\xba"},
    {std::string("a\xef\xbb\xbf\xe2\x81\xaa\xef\xbf\xb9\xef\xbf\xbc\x00\x0b\x0e\x1f"
                 "b\xe2\x80\x8b\xc2\xad\xe2\x80\xaa\xe2\x80\x8d",
                 29),
     "ab\xe2\x80\x8b\xc2\xad\xe2\x80\xaa\xe2\x80\x8d"},
    {std::string("e\xcc\x81\xcc\xa7 \xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8 \xe2\x84\xab \xe0\xa5\x98 "
                 "\xf0\x9d\x85\x9e",
                 28),
     "\xc8\xa9\xcc\x81 \xea\xb0\x81 \xc3\x85 \xe0\xa4\x95\xe0\xa4\xbc "
     "\xf0\x9d\x85\x97\xf0\x9d\x85\xa5"},
    {std::string("&CounterClockwiseContourIntegral; &NotEqualTilde; &fjlig; &ThickSpace;|", 71),
     "\xe2\x88\xb3 \xe2\x89\x82\xcc\xb8 fj |"},
    {std::string("\xe1\x9a\x80\xe2\x80\x83\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80x\xc2\xa0\x1c\x1fy"
                 "\x09\x0cz\xe1\xa0\x8e",
                 27),
     "x y z\xe1\xa0\x8e"},
    {std::string("&amp;#38;amp;#60;", 17), "<"},
    {std::string("&hellip &hellip; &nbsp;&nbsp;end&nbsp;", 38), "&hellip \xe2\x80\xa6 end"},
    {std::string("&Tab;&NewLine;x&ZeroWidthSpace;", 31), "x\xe2\x80\x8b"},
    {std::string("&&&&&amp;amp;amp;", 17), "&&&&&"},
    {std::string("\xef\xbc\x86"
                 "amp;lt;",
                 10),
     "<"},
    {std::string("&#x26;#x26;#x26;lt;", 19), "<"},
    {std::string("\xcd\x84\xcd\x85 \xef\xac\x9d", 8), "\xcc\x88\xcc\x81\xcd\x85 \xd7\x99\xd6\xb4"},
    {std::string("q&apos;s &QUOT;x&QUOT; &quot", 28), "q's \"x\" \""},
    {std::string("\x1b[\xef\xbc\x93m \x1b\xef\xbc\xbb"
                 "31m",
                 14),
     ""}};

TEST(TextClean, EveryStepAsTheReference) {
  for (size_t i = 0; i < std::size(kCases); ++i)
    EXPECT_EQ(clean_prompt(kCases[i].first), kCases[i].second) << "case " << i;
}

TEST(TextClean, TakesAnyBytes) {
  constexpr std::string_view kSteering = "&#x;<\x1b[1m\r\n ";
  uint32_t state = 7;
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) {
      state = state * 1664525u + 1013904223u;
      // Half of the bytes are characters that have a meaning for the steps.
      text += (state >> 31) ? static_cast<char>(state >> 20)
                            : kSteering[(state >> 16) % kSteering.size()];
    }
    const std::string cleaned = clean_prompt(text);
    // The result is well-formed and has no white space at its ends.
    EXPECT_EQ(encode_utf8(decode_utf8(cleaned)), cleaned);
    EXPECT_FALSE(cleaned.starts_with(' ') || cleaned.ends_with(' '));
    EXPECT_EQ(cleaned.find("  "), cleaned.npos);
  }
}

TEST(TextClean, LongTextsStayLinear) {
  // These texts would take minutes if the work were quadratic.
  const std::string ampersands(1'000'000, '&'), references = [] {
    std::string text;
    while (text.size() < 1'000'000) text += "&amp;";
    return text;
  }();
  EXPECT_EQ(clean_prompt(ampersands), ampersands);
  EXPECT_EQ(clean_prompt(references).size(), references.size() / 5);
  EXPECT_EQ(clean_prompt("&#" + std::string(1'000'000, '9') + ";"), "\xef\xbf\xbd");
}

TEST(Utf8, RoundTripsEveryCodePoint) {
  std::u32string all;
  for (char32_t point = 0; point <= 0x10ffff; ++point)
    if (point < 0xd800 || point > 0xdfff) all.push_back(point);
  EXPECT_TRUE(decode_utf8(encode_utf8(all)) == all);
  EXPECT_EQ(encode_utf8(std::u32string{0xd800, 0x110000}), "\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Html, CautiousReadingNeedsTheSemicolon) {
  EXPECT_TRUE(html_unescape_cautious(U"&amp &amp; &notit; &EACUTE;") == U"&amp & &notit; \u00c9");
  EXPECT_TRUE(html_unescape(U"&amp &amp; &notit; &EACUTE;") == U"& & \u00acit; &EACUTE;");
}

}  // namespace
}  // namespace weft
