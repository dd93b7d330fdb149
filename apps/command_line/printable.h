#pragma once
// Makes text safe for a terminal: names and messages from files can hold control characters.
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

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

// A word of a shell's command line, quoted where it has to be.
inline std::string shell_word(const std::string& word) {
  const auto plain = [](char c) {
    return std::string_view("/._-+=:,@%").find(c) != std::string_view::npos ||
           std::isalnum(static_cast<unsigned char>(c));
  };
  if (!word.empty() && std::ranges::all_of(word, plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace weft
