#pragma once
// Scalar conversions among the float dtypes, each rounding once (nearest, ties to even). All of
// them are constexpr so that device code may call them.
#include <bit>
#include <type_traits>

#include "kernels/tensor.h"

namespace weft {

struct half {
  uint16_t bits = 0;
};

constexpr float half_to_float(half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = value.bits >> 10 & 0x1fu, fraction = value.bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

constexpr half float_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return {static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // >= 65520
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a multiple of 2^-24; adding 0.5 leaves ulp 2^-24 in the f32 sum.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return {static_cast<uint16_t>(sign | (rounded - 0x38000000u) >> 13)};
}

// f64 to f32 with the lost bits folded into the last one (round to odd), so that a further
// rounding to 16 bits is the rounding of the f64 value (Boldo & Melquiond 2008).
constexpr float to_odd_float(double value) {
  const auto nearest = static_cast<float>(value);
  const double back = nearest;
  if (back == value || value != value) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if ((back < 0 ? -back : back) > (value < 0 ? -value : value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

// From and To are among float, bf16, half and double; moves without conversion do not come here.
template <class From>
constexpr double load_exact(From value) {
  if constexpr (std::is_same_v<From, half>)
    return half_to_float(value);
  else if constexpr (std::is_same_v<From, bf16>)
    return to_float(value);
  else
    return value;
}

template <class To, class From>
constexpr To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, double>) {
    return load_exact(value);
  } else {
    float single = 0;
    if constexpr (std::is_same_v<From, half>)
      single = half_to_float(value);
    else if constexpr (!std::is_same_v<From, double>)
      single = to_float(value);
    else if constexpr (std::is_same_v<To, float>)
      single = static_cast<float>(value);
    else
      single = to_odd_float(value);
    if constexpr (std::is_same_v<To, half>)
      return float_to_half(single);
    else
      return from_float<To>(single);
  }
}

// Calls f with a tag of the element type for the four convertible dtypes; others are a bug.
template <class F>
decltype(auto) visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kBF16:
      return f(bf16{});
    case DType::kF16:
      return f(half{});
    default:
      CHECK(dtype == DType::kF64, "dtype", to_string(dtype));
      return f(double{});
  }
}

}  // namespace weft
