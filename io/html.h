#pragma once
// HTML character references to text, in the two readings that prompt cleaning needs.
#include <string>
#include <string_view>

namespace weft {

// HTML5's own rules, as Python's html.unescape: names with or without a semicolon, the longest
// prefix that is a name, numbers of any size.
std::u32string html_unescape(std::u32string_view text);

// The cautious reading of ftfy.fixes.unescape_html: only references that end in a semicolon, and
// names in capitals where HTML5 has none.
std::u32string html_unescape_cautious(std::u32string_view text);

// What Windows-1252 has at 0x80..0x9F; the five bytes it leaves open stay as they are.
char32_t windows_1252(char32_t control);

}  // namespace weft
