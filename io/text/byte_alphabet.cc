#include "io/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "io/text/utf8.h"

namespace weft {
namespace {

struct Alphabet {
  std::array<char32_t, 256> letters{};
  std::array<int16_t, 0x100 + 68> bytes{};  // -1: no letter
};

const Alphabet& alphabet() {
  static const Alphabet value = [] {
    Alphabet a;
    a.bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      a.letters[byte] = itself ? static_cast<char32_t>(byte) : next++;
      a.bytes[a.letters[byte]] = static_cast<int16_t>(byte);
    }
    return a;
  }();
  return value;
}

}  // namespace

char32_t byte_letter(unsigned char byte) { return alphabet().letters[byte]; }

std::string spell_bytes(std::string_view bytes) {
  std::u32string letters;
  for (const char byte : bytes) letters += byte_letter(static_cast<unsigned char>(byte));
  return encode_utf8(letters);
}

std::optional<std::string> read_spelled(std::string_view spelled) {
  std::string bytes;
  for (const char32_t letter : decode_utf8(spelled)) {
    if (letter >= alphabet().bytes.size() || alphabet().bytes[letter] < 0) return std::nullopt;
    bytes += static_cast<char>(alphabet().bytes[letter]);
  }
  return bytes;
}

}  // namespace weft
