#pragma once
// Converts HTML character references to text, in the two ways that prompt cleaning needs.
#include <string>
#include <string_view>

namespace weft {

// Follows HTML5's own rules, like Python's html.unescape: names with or without a semicolon, the
// longest prefix that is a name, numbers of any size.
std::u32string html_unescape(std::u32string_view text);

// Follows ftfy.fixes.unescape_html: only references that end in a semicolon, and also names in
// capitals that HTML5 does not have.
std::u32string html_unescape_cautious(std::u32string_view text);

// Returns the Windows-1252 character for 0x80..0x9F. The five bytes that are undefined there are
// returned unchanged.
char32_t windows_1252(char32_t control);

}  // namespace weft
