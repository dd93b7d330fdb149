#include "io/text/text_clean.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "io/text/html.h"
#include "io/text/normal_form.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

// Returns a Latin ligature or digraph spelled out, or an empty text for any other character.
std::u32string_view ligature(char32_t c) {
  switch (c) {
    case 0x132:
      return U"IJ";
    case 0x133:
      return U"ij";
    case 0x149:
      return U"\x2bcn";
    case 0x1c4:
      return U"D\x17d";
    case 0x1c5:
      return U"D\x17e";
    case 0x1c6:
      return U"d\x17e";
    case 0x1c7:
      return U"LJ";
    case 0x1c8:
      return U"Lj";
    case 0x1c9:
      return U"lj";
    case 0x1ca:
      return U"NJ";
    case 0x1cb:
      return U"Nj";
    case 0x1cc:
      return U"nj";
    case 0x1f1:
      return U"DZ";
    case 0x1f2:
      return U"Dz";
    case 0x1f3:
      return U"dz";
    case 0xfb00:
      return U"ff";
    case 0xfb01:
      return U"fi";
    case 0xfb02:
      return U"fl";
    case 0xfb03:
      return U"ffi";
    case 0xfb04:
      return U"ffl";
    case 0xfb05:
      return U"\x17ft";
    case 0xfb06:
      return U"st";
    default:
      return {};
  }
}

char32_t straight_quote(char32_t c) {
  if (c == 0x2bc || (c >= 0x2018 && c <= 0x201b)) return '\'';
  if (c >= 0x201c && c <= 0x201f) return '"';
  return c;
}

bool is_removed_control(char32_t c) {
  return c <= 0x08 || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f ||
         (c >= 0x206a && c <= 0x206f) || c == 0xfeff || (c >= 0xfff9 && c <= 0xfffc);
}

// Fixes C1 controls, ligatures, widths, quotes and line breaks. Each fix looks at one character
// (except CRLF), and later fixes see the results of earlier ones.
std::u32string fix_characters(std::u32string_view text) {
  std::u32string out;
  out.reserve(text.size());
  std::u32string wide;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = windows_1252(text[i]);
    std::u32string_view piece(&c, 1);
    if (const auto spelled = ligature(c); !spelled.empty()) piece = spelled;
    if (c == 0x3000) piece = U" ";
    if (c >= 0xff01 && c <= 0xffef) piece = wide = to_nfkc(piece);
    for (char32_t part : piece) {
      part = straight_quote(part);
      if (part == '\r' && i + 1 < text.size() && text[i + 1] == '\n') ++i;
      if (part == '\r' || part == 0x2028 || part == 0x2029 || part == 0x85) part = '\n';
      out.push_back(part);
    }
  }
  return out;
}

// Removes terminal escapes (`ESC [`, digits and semicolons, one letter), and then control
// characters.
std::u32string remove_controls(std::u32string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0x1b && i + 1 < text.size() && text[i + 1] == '[') {
      size_t end = i + 2;
      while (end < text.size() && (text[end] == ';' || u_isdigit(static_cast<UChar32>(text[end]))))
        ++end;
      if (end < text.size() && ((text[end] | 0x20) >= 'a' && (text[end] | 0x20) <= 'z')) {
        i = end;
        continue;
      }
    }
    if (!is_removed_control(text[i])) out.push_back(text[i]);
  }
  return out;
}

enum class Entities { kKeep, kUnescape };

// ftfy's fix_and_explain: applies every fix in order, and repeats until nothing changes.
std::u32string fix_segment(std::u32string text, Entities entities) {
  for (;;) {
    std::u32string fixed = entities == Entities::kUnescape ? html_unescape_cautious(text) : text;
    fixed = to_nfc(remove_controls(fix_characters(fixed)));
    if (fixed == text) return fixed;
    text = std::move(fixed);
  }
}

// ftfy's fix_text: works line by line. From the first line with a '<' on, entities are not decoded.
std::u32string fix_text(std::u32string_view text) {
  constexpr size_t kLongestSegment = 1'000'000;
  std::u32string out;
  Entities entities = Entities::kUnescape;
  while (!text.empty()) {
    const size_t line = std::min(text.find(U'\n'), text.size() - 1) + 1;
    const std::u32string_view segment = text.substr(0, std::min(line, kLongestSegment));
    if (segment.find(U'<') != segment.npos) entities = Entities::kKeep;
    out += fix_segment(std::u32string(segment), entities);
    text.remove_prefix(segment.size());
  }
  return out;
}

// Python's str.isspace, which Python's regular expressions use for \s.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

}  // namespace

std::string clean_prompt(std::string_view text) {
  const std::u32string fixed = html_unescape(html_unescape(fix_text(decode_utf8(text))));
  std::u32string out;
  out.reserve(fixed.size());
  bool space = false;
  for (char32_t c : fixed) {
    if (is_space(c)) {
      space = !out.empty();
      continue;
    }
    if (space) out.push_back(' ');
    space = false;
    out.push_back(c);
  }
  return encode_utf8(out);
}

}  // namespace weft
