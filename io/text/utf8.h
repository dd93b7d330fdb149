#pragma once
// Converts UTF-8 to code points and back, and tells and writes what is not UTF-8.
#include <string>
#include <string_view>

namespace weft {

// Each maximal ill-formed stretch becomes one U+FFFD (Unicode 15, section 3.9, as Python decodes
// with errors="replace").
std::u32string decode_utf8(std::string_view text);
// Surrogates and values above U+10FFFF are written as U+FFFD.
std::string encode_utf8(std::u32string_view text);
bool is_utf8(std::string_view text);
// Returns the number of bytes at the end, 0 to 3, that are the beginning of an incomplete
// character.
size_t incomplete_utf8_tail(std::string_view text);
// Returns the longest beginning of at most `bytes` bytes that ends at the end of a character.
std::string_view utf8_beginning(std::string_view text, size_t bytes);

// True for letters, marks and digits of any script.
bool is_word(char32_t point);

// Returns the text that a user has written in a file or an argument, without byte order marks, and
// with \n for every line end. Error(kUsage) where it is not UTF-8 or has a NUL; the message names
// `what`, the line and the byte.
std::string user_text(std::string_view bytes, const std::string& what);

// Writes every byte that is not part of a UTF-8 character as \xHH, with two small digits.
std::string shown_bytes(std::string_view bytes);
// A path as records have it: as text that gives every byte back. It is shown_bytes(), and a
// backslash that looks like the beginning of \xHH is itself \x5c. Other paths stay as they are.
std::string path_text(std::string_view path);
std::string path_of_text(std::string_view text);

}  // namespace weft
