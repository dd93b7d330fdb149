#include "io/text/utf8.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cstdio>

#include "kernels/check.h"

namespace weft {
namespace {

// The bytes that must follow a lead byte: `more` of them, the first one in [low, high]. This range
// excludes overlong forms, surrogates and values that are too large (Unicode table 3-7).
struct Sequence {
  int more;  // 0 for a byte that is no lead byte
  unsigned char low, high;
};

Sequence sequence(unsigned char lead) {
  Sequence s{0, 0x80, 0xbf};
  if (lead >= 0xc2 && lead <= 0xdf) s.more = 1;
  if (lead >= 0xe0 && lead <= 0xef) s.more = 2;
  if (lead >= 0xf0 && lead <= 0xf4) s.more = 3;
  if (lead == 0xe0) s.low = 0xa0;
  if (lead == 0xed) s.high = 0x9f;
  if (lead == 0xf0) s.low = 0x90;
  if (lead == 0xf4) s.high = 0x8f;
  return s;
}

// Returns the length of the well-formed character at `at`, or 0.
size_t character_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x80) return 1;
  auto [more, low, high] = sequence(byte(at));
  const size_t length = 1 + static_cast<size_t>(more);
  if (more == 0 || text.size() - at < length) return 0;
  for (size_t i = at + 1; i < at + length; ++i) {
    if (byte(i) < low || byte(i) > high) return 0;
    low = 0x80;
    high = 0xbf;
  }
  return length;
}

std::string hex_byte(char byte, const char* before) {
  char text[8];
  std::snprintf(text, sizeof text, "%s%02x", before, static_cast<unsigned char>(byte));
  return text;
}

// True where the text has \xHH at `at`, but for NUL, which no path has.
bool is_escape(std::string_view text, size_t at) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  return text.size() - at >= 4 && text.substr(at, 2) == "\\x" && text.substr(at + 2, 2) != "00" &&
         kDigits.find(text[at + 2]) != kDigits.npos && kDigits.find(text[at + 3]) != kDigits.npos;
}

// Returns `bytes` with every byte that is not UTF-8 escaped, and the backslashes of
// escapes where `all` is set.
std::string escaped(std::string_view bytes, bool all) {
  std::string out;
  for (size_t at = 0, length = 0; at < bytes.size(); at += std::max<size_t>(length, 1)) {
    length = character_at(bytes, at);
    if (length == 0 || (all && is_escape(bytes, at)))
      out += hex_byte(bytes[at], "\\x");
    else
      out += bytes.substr(at, length);
  }
  return out;
}

constexpr std::string_view kMark = "\xef\xbb\xbf";

// The name of the encoding that a mark at the beginning tells, or nullptr.
const char* other_encoding(std::string_view bytes) {
  if (bytes.starts_with(std::string_view("\xff\xfe\0\0", 4)) ||
      bytes.starts_with(std::string_view("\0\0\xfe\xff", 4)))
    return "UTF-32";
  return bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff") ? "UTF-16" : nullptr;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t at = 0, length = 0; at < text.size(); at += length) {
    length = character_at(text, at);
    if (length == 0) return false;
  }
  return true;
}

bool is_word(char32_t point) {
  const uint32_t kinds = U_GC_L_MASK | U_GC_M_MASK | U_GC_N_MASK;
  return U_GET_GC_MASK(static_cast<UChar32>(point)) & kinds;
}

std::string user_text(std::string_view bytes, const std::string& what) {
  const auto refuse = [&](const std::string& fault) {
    throw Error(ErrorKind::kUsage, what + fault + "; legal: text in UTF-8");
  };
  if (const char* name = other_encoding(bytes))
    refuse(std::string(" is in ") + name + " (iconv -f " + name + " -t UTF-8 converts a file)");
  std::string out;
  size_t line = 1, begin = 0;
  for (size_t at = 0, length = 0; at < bytes.size(); at += length) {
    length = character_at(bytes, at);
    if (length == 0 || bytes[at] == '\0')
      refuse(" line " + std::to_string(line) + ": byte " + std::to_string(at - begin + 1) +
             (length ? " is NUL" : " is " + hex_byte(bytes[at], "0x") + ", which is not UTF-8"));
    if (at == begin && bytes.substr(at).starts_with(kMark)) continue;
    if (bytes.substr(at).starts_with("\r\n")) continue;
    out += bytes.substr(at, length);
    if (bytes[at] != '\n') continue;
    ++line;
    begin = at + 1;
  }
  return out;
}

std::string_view utf8_beginning(std::string_view text, size_t bytes) {
  text = text.substr(0, bytes);
  return text.substr(0, text.size() - incomplete_utf8_tail(text));
}

std::string shown_bytes(std::string_view bytes) { return escaped(bytes, false); }
std::string path_text(std::string_view path) { return escaped(path, true); }

std::string path_of_text(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!is_escape(text, at)) {
      out += text[at];
      continue;
    }
    out += static_cast<char>(std::stoi(std::string(text.substr(at + 2, 2)), nullptr, 16));
    at += 3;
  }
  return out;
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      out.push_back(lead);
      continue;
    }
    auto [more, low, high] = sequence(lead);
    char32_t point = more == 1 ? lead & 0x1fu : more == 2 ? lead & 0x0fu : lead & 0x07u;
    bool good = more > 0;
    for (; more > 0 && good; --more) {
      const unsigned char next = i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
      good = next >= low && next <= high;
      if (!good) break;
      point = point << 6 | (next & 0x3fu);
      low = 0x80;
      high = 0xbf;
      ++i;
    }
    out.push_back(good ? point : U'\xfffd');
  }
  return out;
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (char32_t point : text) {
    if (point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) point = 0xfffd;
    if (point < 0x80) {
      out += static_cast<char>(point);
    } else if (point < 0x800) {
      out += static_cast<char>(0xc0 | point >> 6);
      out += static_cast<char>(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
      out += static_cast<char>(0xe0 | point >> 12);
      out += static_cast<char>(0x80 | (point >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (point & 0x3f));
    } else {
      out += static_cast<char>(0xf0 | point >> 18);
      out += static_cast<char>(0x80 | (point >> 12 & 0x3f));
      out += static_cast<char>(0x80 | (point >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (point & 0x3f));
    }
  }
  return out;
}

size_t incomplete_utf8_tail(std::string_view text) {
  const size_t longest = std::min<size_t>(3, text.size());
  for (size_t tail = 1; tail <= longest; ++tail) {
    const auto byte = [&](size_t i) {
      return static_cast<unsigned char>(text[text.size() - tail + i]);
    };
    if ((byte(0) & 0xc0) == 0x80) continue;  // continues an earlier lead byte
    const Sequence s = sequence(byte(0));
    const bool sound = tail == 1 || (byte(1) >= s.low && byte(1) <= s.high);
    return sound && static_cast<size_t>(s.more) >= tail ? tail : 0;
  }
  return 0;
}

}  // namespace weft
