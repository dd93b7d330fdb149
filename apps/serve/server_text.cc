#include "apps/serve/server_text.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <random>

namespace weft {
namespace {

constexpr std::string_view kBase64Digits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm utc;
  gmtime_r(&seconds, &utc);
  char date[32], text[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(milliseconds % 1000));
  return text;
}

std::optional<std::string> base64_bytes(std::string_view text) {
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::array<uint8_t, 256> digits;
  digits.fill(kBase64Digits.size());
  for (size_t i = 0; i < kBase64Digits.size(); ++i)
    digits[static_cast<uint8_t>(kBase64Digits[i])] = i;
  digits['-'] = digits['+'];
  digits['_'] = digits['/'];
  std::string out;
  out.reserve(text.size() / 4 * 3);
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    const uint8_t digit = digits[static_cast<uint8_t>(c)];
    if (digit == kBase64Digits.size()) return std::nullopt;
    bits = bits << 6 | digit;
    if ((count += 6) < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 255);
  }
  if (count == 6) return std::nullopt;  // a digit alone is no byte
  return out;
}

std::string base64_text(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  unsigned bits = 0;
  int count = 0;
  for (const char c : bytes) {
    bits = bits << 8 | static_cast<unsigned char>(c);
    for (count += 8; count >= 6; count -= 6) out += kBase64Digits[bits >> (count - 6) & 63];
  }
  if (count > 0) out += kBase64Digits[bits << (6 - count) & 63];
  out.append((4 - out.size() % 4) % 4, '=');
  return out;
}

std::string random_hex(int words) {
  std::random_device random;
  std::string text;
  for (int word = 0; word < words; ++word) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "%08x", random());
    text += digits;
  }
  return text;
}

}  // namespace weft
