#include "io/text/html.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace weft {
namespace {

struct HtmlEntity {
  std::string_view name;  // without '&', with ';' if the reference has one
  char32_t text[3];       // padded with 0
};

#include "io/text/html_entities.inc"

constexpr char32_t kLastPoint = 0x10ffff;

// Returns the entry with exactly this name, or null.
const HtmlEntity* find(std::span<const HtmlEntity> table, std::string_view name) {
  const auto it = std::lower_bound(
      table.begin(), table.end(), name,
      [](const HtmlEntity& entity, std::string_view key) { return entity.name < key; });
  return it != table.end() && it->name == name ? &*it : nullptr;
}

void append(std::u32string& out, const HtmlEntity& entity) {
  for (char32_t point : entity.text)
    if (point) out.push_back(point);
}

int digit(char32_t point, int base) {
  if (point >= '0' && point <= '9') return static_cast<int>(point - '0');
  if (base == 16 && point >= 'a' && point <= 'f') return static_cast<int>(point - 'a' + 10);
  if (base == 16 && point >= 'A' && point <= 'F') return static_cast<int>(point - 'A' + 10);
  return -1;
}

bool alphanumeric(char32_t point) {
  return (point >= '0' && point <= '9') || (point >= 'A' && point <= 'Z') ||
         (point >= 'a' && point <= 'z');
}

// Appends the character of a numeric reference (HTML standard, "numeric character reference end
// state"). Like Python it drops controls and noncharacters.
void append_number(std::u32string& out, char32_t number) {
  if (number >= 0x80 && number <= 0x9f) return out.push_back(windows_1252(number));
  if (number == 0 || number > kLastPoint || (number >= 0xd800 && number <= 0xdfff))
    return out.push_back(0xfffd);
  const bool control =
      number < 0x20 && number != '\t' && number != '\n' && number != '\f' && number != '\r';
  const bool nonchar = (number & 0xfffe) == 0xfffe || (number >= 0xfdd0 && number <= 0xfdef);
  if (!control && !nonchar && number != 0x7f) out.push_back(number);
}

// Reads "#123" or "#x1F" at `at` (after the '&'), without a semicolon. Returns its length, 0 where
// there is none; numbers past the last code point saturate.
size_t read_number(std::u32string_view text, size_t at, char32_t& number) {
  if (at >= text.size() || text[at] != '#') return 0;
  size_t i = at + 1;
  const bool hex = i < text.size() && (text[i] == 'x' || text[i] == 'X');
  const int base = hex ? 16 : 10;
  if (hex) ++i;
  const size_t digits = i;
  number = 0;
  for (; i < text.size() && digit(text[i], base) >= 0; ++i)
    number = std::min<char32_t>(number * base + digit(text[i], base), kLastPoint + 1);
  return i > digits ? i - at : 0;
}

// Reads the characters that may belong to a name, at most `limit`, including its semicolon. Names
// are ASCII. Other characters become '\x7f', which no name contains.
std::string read_name(std::u32string_view text, size_t at, size_t limit) {
  std::string name;
  for (; at < text.size() && name.size() < limit; ++at) {
    const char32_t c = text[at];
    if (c == '\t' || c == '\n' || c == '\f' || c == ' ' || c == '<' || c == '&' || c == '#' ||
        c == ';')
      break;
    name += c < 0x7f ? static_cast<char>(c) : '\x7f';
  }
  if (!name.empty() && at < text.size() && text[at] == ';') name += ';';
  return name;
}

}  // namespace

char32_t windows_1252(char32_t control) {
  static constexpr char32_t kTable[32] = {
      0x20ac, 0x81,   0x201a, 0x192,  0x201e, 0x2026, 0x2020, 0x2021, 0x2c6,  0x2030, 0x160,
      0x2039, 0x152,  0x8d,   0x17d,  0x8f,   0x90,   0x2018, 0x2019, 0x201c, 0x201d, 0x2022,
      0x2013, 0x2014, 0x2dc,  0x2122, 0x161,  0x203a, 0x153,  0x9d,   0x17e,  0x178};
  return control >= 0x80 && control <= 0x9f ? kTable[control - 0x80] : control;
}

std::u32string html_unescape(std::u32string_view text) {
  constexpr size_t kLongestName = 32;
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    out.push_back(text[i++]);
    if (out.back() != '&') continue;
    char32_t number;
    if (const size_t length = read_number(text, i, number)) {
      out.pop_back();
      append_number(out, number);
      i += length;
      if (i < text.size() && text[i] == ';') ++i;
      continue;
    }
    const std::string name = read_name(text, i, kLongestName);
    for (size_t length = name.size(); length > 1; --length) {
      const HtmlEntity* entity = find(kEntities, std::string_view(name).substr(0, length));
      if (!entity) continue;
      out.pop_back();
      append(out, *entity);
      i += length;
      break;
    }
  }
  return out;
}

std::u32string html_unescape_cautious(std::u32string_view text) {
  constexpr size_t kLongestReference = 24;  // letters and digits after '&' or "&#"
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    out.push_back(text[i++]);
    if (out.back() != '&') continue;
    const bool numeric = i < text.size() && text[i] == '#';
    const size_t begin = i + (numeric ? 1 : 0);
    size_t end = begin;
    while (end < text.size() && end - begin < kLongestReference && alphanumeric(text[end])) ++end;
    if (end == begin || end >= text.size() || text[end] != ';') continue;
    if (numeric) {
      char32_t number;
      // A reference to ';' itself is kept, because ftfy takes a semicolon in the result as a sign
      // that only part of the reference was read.
      if (read_number(text, i, number) != end - i || number == ';') continue;
      out.pop_back();
      append_number(out, number);
    } else {
      const std::string name(text.begin() + begin, text.begin() + end + 1);
      const HtmlEntity* entity = find(kEntities, name);
      if (!entity) entity = find(kCapitals, name);
      if (!entity) continue;
      out.pop_back();
      append(out, *entity);
    }
    i = end + 1;
  }
  return out;
}

}  // namespace weft
