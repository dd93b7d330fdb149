#pragma once
// Rows of whole numbers from -127 to 127 that share a power of two, as E4m3Row (fp8.h) is of 8-bit
// floats.
#include "kernels/fp8.h"

namespace weft {

struct Int8Row {
  static constexpr int8_t kNotFinite = -128;  // the exponent of a row that holds NaN or Inf

  int8_t exponent;

  // `most` is the largest magnitude_bits of the row. The exponent is the smallest n for which the
  // largest number times 2^-n is at most 127, within what f32 holds.
  constexpr explicit Int8Row(uint32_t most) : exponent(kNotFinite) {
    constexpr int kLeast = -118, kBias = 127;
    if (most >= 0x7f800000u) return;
    // 127 is 1.984375 x 2^6.
    const int least = static_cast<int>(most >> 23) - kBias - 6 + ((most & 0x7fffffu) > 0x7e0000u);
    exponent = static_cast<int8_t>(most == 0 ? 0 : least < kLeast ? kLeast : least);
  }
  constexpr float unit() const { return exponent == kNotFinite ? 0 : power_of_two(-exponent); }

  // Rounds to nearest, ties to even. NaN becomes 0.
  static constexpr int8_t code(float number) {
    if (!(number == number)) return 0;
    // The sum with 1.5 x 2^23 has no bits after the point.
    const auto bits = std::bit_cast<uint32_t>(number + 0x1.8p23f);
    return static_cast<int8_t>(static_cast<int32_t>(bits - 0x4b400000u));
  }
  static constexpr float number(int8_t code) { return code; }
  static constexpr float scale(int8_t exponent) {
    return exponent == kNotFinite ? std::bit_cast<float>(0x7fc00000u) : power_of_two(exponent);
  }
};

}  // namespace weft
