#include "io/utf8.h"

namespace weft {

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      out.push_back(lead);
      continue;
    }
    // The legal range of the second byte keeps out overlong forms, surrogates and values that are
    // too large (Unicode table 3-7).
    unsigned char low = 0x80, high = 0xbf;
    int more = 0;
    if (lead >= 0xc2 && lead <= 0xdf) more = 1;
    if (lead >= 0xe0 && lead <= 0xef) more = 2;
    if (lead >= 0xf0 && lead <= 0xf4) more = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
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

}  // namespace weft
