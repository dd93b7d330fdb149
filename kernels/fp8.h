#pragma once
// The scalar type f8_e4m3 (OCP 8-bit floating point, Micikevicius et al. 2022) has a sign, four
// bits of exponent and three of fraction. It has no infinity; 0x7f is NaN, the largest value is
// 448, the smallest positive one 2^-9.
#include <bit>
#include <cstdint>
#include <limits>

namespace weft {

inline constexpr float kLargestE4m3 = 448;

// All of these are constexpr so that device code may call them.
constexpr float from_e4m3(uint8_t value) {
  const uint32_t magnitude = value & 0x7fu, sign = static_cast<uint32_t>(value & 0x80u) << 24;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Reading the bits as f32 leaves the exponent 120 too small. The multiplication is exact, for
  // subnormals too.
  return std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
}

// Rounds to nearest, ties to even. Values beyond the largest become the largest; NaN stays NaN.
constexpr uint8_t to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);  // >= 448
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the result is a multiple of 2^-9, which is the last bit of a sum with 2^14.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | (rounded - 0x3c000000u) >> 20);
}

// A row whose largest magnitude is `most` is stored as to_e4m3(value * e4m3_unit(most)), with the
// scale most / 448.
constexpr float e4m3_unit(float most) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (!(most > 0)) return 0;
  return most < kLargestE4m3 / kMost ? kMost : kLargestE4m3 / most;
}

// Returns the smallest n for which `most` * 2^-n is at most 448, within what f32 holds. A power of
// two only changes the exponent, so the numbers that share a scale do not affect each other's
// rounding: only values below 2^-14 of the largest lose bits.
constexpr int e4m3_exponent(float most) {
  if (!(most > 0)) return 0;
  constexpr int kLeast = -118, kBias = 127;
  const uint32_t bits = std::bit_cast<uint32_t>(most);
  // 448 is 1.75 x 2^8.
  const int exponent = static_cast<int>(bits >> 23) - kBias - 8 + ((bits & 0x7fffffu) > 0x600000u);
  return exponent < kLeast ? kLeast : exponent;
}

// Returns 2^n for n from -126 to 127.
constexpr float power_of_two(int n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

// Returns the power-of-two scale of numbers of magnitude up to `most`, or NaN if `most` is not
// finite.
constexpr float e4m3_scale(float most) {
  return most <= std::numeric_limits<float>::max() ? power_of_two(e4m3_exponent(most))
                                                   : std::bit_cast<float>(0x7fc00000u);
}

// The bits of |value|, which are ordered as magnitudes are. Inf is above all finite values, and NaN
// above Inf.
constexpr uint32_t magnitude_bits(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

// A row of numbers that share a power of two: value * unit() is stored. If the row holds NaN or
// Inf, the unit is NaN.
struct E4m3Row {
  bool finite;
  int8_t exponent;

  // `most` is the largest magnitude_bits of the row.
  constexpr explicit E4m3Row(uint32_t most)
      : finite(most < 0x7f800000u),
        exponent(static_cast<int8_t>(finite ? e4m3_exponent(std::bit_cast<float>(most)) : 0)) {}
  constexpr float unit() const {
    return finite ? power_of_two(-exponent) : std::bit_cast<float>(0x7fc00000u);
  }
  // A number times unit() as its byte, and back; the number is that times scale().
  static constexpr int8_t code(float number) { return static_cast<int8_t>(to_e4m3(number)); }
  static constexpr float number(int8_t code) { return from_e4m3(static_cast<uint8_t>(code)); }
  static constexpr float scale(int8_t exponent) { return power_of_two(exponent); }
};

}  // namespace weft
