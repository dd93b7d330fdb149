#pragma once
// GPT-2's byte alphabet: a printable character for every byte, in which byte-level vocabularies are
// spelled.
#include <optional>
#include <string>
#include <string_view>

namespace weft {

// 33..126, 161..172 and 174..255 stand for themselves, the other 68 for U+0100 and on.
char32_t byte_letter(unsigned char byte);
std::string spell_bytes(std::string_view bytes);
// Nullopt where a character is no letter of the alphabet.
std::optional<std::string> read_spelled(std::string_view spelled);

}  // namespace weft
