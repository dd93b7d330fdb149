#pragma once
// Converts UTF-8 to code points and back.
#include <string>
#include <string_view>

namespace weft {

// Each maximal ill-formed stretch becomes one U+FFFD (Unicode 15, section 3.9, as Python decodes
// with errors="replace").
std::u32string decode_utf8(std::string_view text);
// Surrogates and values above U+10FFFF are written as U+FFFD.
std::string encode_utf8(std::u32string_view text);
// Returns the number of bytes at the end, 0 to 3, that are the beginning of an incomplete
// character.
size_t incomplete_utf8_tail(std::string_view text);

}  // namespace weft
