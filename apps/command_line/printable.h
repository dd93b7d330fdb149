#pragma once
// Makes text safe for a terminal: names and messages from files can hold control characters.
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>

#include "io/text/utf8.h"

namespace weft {

enum class Newlines : bool { kShown, kKept };

// Replaces control characters by '?', and bytes that are not UTF-8 by \xHH.
inline std::string printable(std::string text, Newlines newlines = Newlines::kShown) {
  text = shown_bytes(text);
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
  if (printable(word) != word) {  // $'gr\xfcn'
    std::string out = "$'";
    for (const char c : word) {
      constexpr std::string_view kHex = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte >= 0x7f)
        out += std::string("\\x") + kHex[byte >> 4] + kHex[byte & 15];
      else
        out += (c == '\'' || c == '\\' ? "\\" : "") + std::string(1, c);
    }
    return out + "'";
  }
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace weft
