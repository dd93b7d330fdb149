#pragma once
// Element types of tensors, their sizes and names, and the bf16 scalar conversions.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kCount
};

// Bytes of one element.
constexpr size_t size_of(DType dtype) {
  constexpr size_t kSize[] = {4, 2, 2, 8, 1, 1, 2, 4, 8, 1, 1, 1};
  static_assert(sizeof(kSize) / sizeof(kSize[0]) == static_cast<size_t>(DType::kCount));
  return kSize[static_cast<size_t>(dtype)];
}

// Short lower-case name: "f32", "bf16", ...
constexpr std::string_view to_string(DType dtype) {
  constexpr std::string_view kName[] = {"f32", "bf16", "f16", "f64",  "i8",      "u8",
                                        "i16", "i32",  "i64", "bool", "f8_e4m3", "f8_e5m2"};
  static_assert(sizeof(kName) / sizeof(kName[0]) == static_cast<size_t>(DType::kCount));
  return kName[static_cast<size_t>(dtype)];
}

struct bf16 {
  uint16_t bits = 0;
};

// All of these are constexpr so that device code may call them.
constexpr float to_float(bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr float to_float(float value) { return value; }

// Round to nearest, ties to even; NaN stays NaN (quiet).
constexpr bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <class T>
constexpr T from_float(float value);
template <>
constexpr float from_float<float>(float value) {
  return value;
}
template <>
constexpr bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<uint16_t> {  // raw bits of a 16-bit float
  static constexpr DType value = DType::kF16;
};

}  // namespace weft
