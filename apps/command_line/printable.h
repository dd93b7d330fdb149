#pragma once
// Makes text safe for a terminal: names and messages from files can hold control characters.
#include <string>

namespace weft {

enum class Newlines : bool { kShown, kKept };

// Replaces control characters by '?'.
inline std::string printable(std::string text, Newlines newlines = Newlines::kShown) {
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 || c == 0x7f) &&
        (newlines == Newlines::kShown || c != '\n'))
      c = '?';
  return text;
}

}  // namespace weft
