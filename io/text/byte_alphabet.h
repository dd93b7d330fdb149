#pragma once
// GPT-2's byte alphabet, which has a printable character for every byte. Byte-level vocabularies
// are spelled in it.
#include <optional>
#include <string>
#include <string_view>

namespace weft {

// The bytes 33..126, 161..172 and 174..255 stand for themselves. The other 68 are U+0100 onwards.
char32_t byte_letter(unsigned char byte);
std::string spell_bytes(std::string_view bytes);
// Returns nullopt if a character is not in the alphabet.
std::optional<std::string> read_spelled(std::string_view spelled);

}  // namespace weft
