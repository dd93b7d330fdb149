#include "io/text/utf8.h"

#include <algorithm>

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

}  // namespace

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
