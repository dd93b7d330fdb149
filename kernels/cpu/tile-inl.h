// The register tile of every CPU GEMM. The files that include this header
// compile it once per SIMD target.
#if defined(WEFT_KERNELS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_CPU_TILE_INL_H_
#undef WEFT_KERNELS_CPU_TILE_INL_H_
#else
#define WEFT_KERNELS_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/dtype.h"
#include "kernels/linear.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors have at most 16 lanes: packed weights are padded to 16 columns, so no tile ever has a
// column tail.
using TileTag = hn::CappedTag<float, 16>;
using TileVec = hn::Vec<TileTag>;

// The tile is rows x vectors of sums in registers: 12 x 2 sums, 2 weights and 1 broadcast fit the
// 32 registers of AVX-512 and NEON, with enough independent FMAs for their latency (4 cycles x 2
// ports = 8 chains); 6 x 2 + 3 fit the 16 registers of AVX2 and SSE.
inline constexpr int kTileRows = (HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86) || !HWY_ARCH_X86 ? 12 : 6;
inline constexpr int kTileVectors = 2;
// The GEMV tile is for few rows: four vectors side by side are whole cache lines of the weights,
// which stream through once; their sums, 4 weights and a broadcast fit the same registers.
inline constexpr int kGemvTileVectors = 4;
inline constexpr int kGemvTileRows = kTileRows > 6 ? 6 : 2;

// Loads one vector of f32 from either type.
HWY_INLINE TileVec load(const float* x) { return hn::LoadU(TileTag(), x); }

HWY_INLINE TileVec load(const bf16* x) {
  const TileTag d;
  const hn::Rebind<uint16_t, TileTag> d16;
  const hn::RebindToUnsigned<TileTag> d32;
  const auto wide = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(x)));
  return hn::BitCast(d, hn::ShiftLeft<16>(wide));
}

// Two bf16 values of one column in the order of the left operand's: oneDNN's bf16 layouts hold such
// pairs. A right operand of pairs has one row for two values of the left operand.
struct Bf16Pair {
  uint32_t bits;  // the first value lies in the lower half
};

template <class T>
inline constexpr int kValuesOf = std::is_same_v<T, Bf16Pair> ? 2 : 1;

// Loads the first (0) or second (1) values of a vector of pairs.
template <int kWhich, class T>
HWY_INLINE TileVec load_value(const T* x) {
  if constexpr (kValuesOf<T> == 1) {
    return load(x);
  } else {
    const TileTag d;
    const hn::RebindToUnsigned<TileTag> d32;
    const auto pairs = hn::LoadU(d32, reinterpret_cast<const uint32_t*>(x));
    if constexpr (kWhich == 0) return hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    return hn::BitCast(d, hn::And(pairs, hn::Set(d32, 0xffff0000u)));
  }
}

// The left operand, read one value at a time: element (r, k) is data[r * row + k * step].
struct TileLeft {
  const float* data;
  int64_t row;
  int64_t step;
};

// The right operand: element (k, j) is data[k * row + j].
template <class T>
struct TileRight {
  const T* data;
  int64_t row;
  HWY_INLINE TileRight from(int64_t column) const { return {data + column, row}; }
};

// The sums: element (r, j) is data[r * row + j]. With `add` they start from the values there.
struct TileSum {
  float* data;
  int64_t row;
  bool add;
  HWY_INLINE TileSum from(int64_t column) const { return {data + column, row, add}; }
};

// sum[r, :] (+)= sum over k of left(r, k) * right[k, :], in ascending k, with one fused
// multiply-add each: the bits of an element do not depend on how rows, columns or k are cut into
// tiles. `depth` counts rows of the right operand. kAhead > 0 prefetches its cache lines that many
// rows ahead.
template <int kRows, int kVectors, int kAhead = 0, class Right>
HWY_INLINE void tile_block(const TileLeft& left, int64_t depth, const TileRight<Right>& from,
                           const TileSum& to) {
  const Right* HWY_RESTRICT right = from.data;
  float* HWY_RESTRICT sum = to.data;
  const int64_t row = left.row, right_row = from.row, sum_row = to.row;
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  TileVec acc[kRows][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = to.add ? hn::LoadU(d, sum + r * sum_row + v * lanes) : hn::Zero(d);
  const float* HWY_RESTRICT a = left.data;
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (kAhead > 0)
      for (int64_t i = 0; i < kVectors * lanes; i += 64 / static_cast<int64_t>(sizeof(Right)))
        hwy::Prefetch(right + kAhead * right_row + i);
    const auto multiply = [&](auto which) {
      TileVec w[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) w[v] = load_value<which>(right + v * lanes);
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r) {
        const TileVec x = hn::Set(d, a[r * row + which * left.step]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(x, w[v], acc[r][v]);
      }
    };
    multiply(std::integral_constant<int, 0>());
    if constexpr (kValuesOf<Right> == 2) multiply(std::integral_constant<int, 1>());
    a += kValuesOf<Right> * left.step;
    right += right_row;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], d, sum + r * sum_row + v * lanes);
}

template <int kVectors>
HWY_INLINE void tile_rows(TileLeft left, int64_t rows, int64_t depth, const TileRight<float>& right,
                          TileSum sum) {
  const auto step = [&](int done) {
    left.data += done * left.row;
    sum.data += done * sum.row;
    rows -= done;
  };
  if constexpr (kVectors <= kTileVectors) {
    while (rows >= kTileRows) {
      tile_block<kTileRows, kVectors>(left, depth, right, sum);
      step(kTileRows);
    }
    if (kTileRows > 6 && rows >= 6) {
      tile_block<6, kVectors>(left, depth, right, sum);
      step(6);
    }
  }
  if (rows >= 3) {
    tile_block<3, kVectors>(left, depth, right, sum);
    step(3);
  }
  for (; rows > 0; step(1)) tile_block<1, kVectors>(left, depth, right, sum);
}

// sum [rows, columns] (+)= left [rows, depth] * right [depth, columns]; columns % 16 is 0.
HWY_INLINE void tile_gemm(const TileLeft& left, int64_t rows, int64_t columns, int64_t depth,
                          const TileRight<float>& right, const TileSum& sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
  int64_t j = 0;
  for (; j + kTileVectors * lanes <= columns; j += kTileVectors * lanes)
    tile_rows<kTileVectors>(left, rows, depth, right.from(j), sum.from(j));
  for (; j < columns; j += lanes) tile_rows<1>(left, rows, depth, right.from(j), sum.from(j));
}

// Calls block<n>() with the constant n = count, 1 to kMost.
template <int kMost, class Block>
HWY_INLINE void with_rows(int64_t count, Block&& block) {
  if constexpr (kMost > 1) {
    if (count < kMost) {
      with_rows<kMost - 1>(count, block);
      return;
    }
  }
  block(std::integral_constant<int, kMost>());
}

// tile_gemm for few rows and a right operand of either type: each line of the right operand is read
// in as few passes as the registers allow. The bits are the same.
template <class Right>
HWY_INLINE void tile_gemv(TileLeft left, int64_t rows, int64_t columns, int64_t depth,
                          const TileRight<Right>& right, TileSum sum) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t width = kGemvTileVectors * lanes, whole = columns / width * width;
  // Rows are cut in equal groups: 8 rows are 4 and 4, since a group of 2 costs more than two thirds
  // of a group of 4. Prefetching 4 KiB ahead leaves time for a
  // page walk and a DRAM access before the line is used.
  constexpr int kAhead = 4096 / (64 * static_cast<int>(sizeof(Right)));
  bool first = true;
  for (int64_t groups = (rows + kGemvTileRows - 1) / kGemvTileRows; groups > 0; --groups) {
    const int64_t count = rows / groups;
    with_rows<kGemvTileRows>(count, [&](auto n) {
      for (int64_t j = 0; j < whole; j += width)
        if (first)
          tile_block<n, kGemvTileVectors, kAhead>(left, depth, right.from(j), sum.from(j));
        else
          tile_block<n, kGemvTileVectors>(left, depth, right.from(j), sum.from(j));
      for (int64_t j = whole; j < columns; j += lanes)
        tile_block<n, 1>(left, depth, right.from(j), sum.from(j));
    });
    first = false;
    left.data += count * left.row;
    sum.data += count * sum.row;
    rows -= count;
  }
}

HWY_INLINE void store(TileVec value, float* out) { hn::StoreU(value, TileTag(), out); }

// Rounds to nearest even. NaN stays NaN: a carry out of its mantissa would make it infinite or
// zero, so its top bits are kept and made quiet.
HWY_INLINE void store(TileVec value, bf16* out) {
  const hn::RebindToUnsigned<TileTag> d32;
  const hn::Rebind<uint16_t, TileTag> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto nan = hn::RebindMask(d32, hn::Ne(value, value));
  const auto top = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<decltype(d32)>(), top)), d16,
             reinterpret_cast<uint16_t*>(out));
}

// Converts any number of values between f32 and bf16.
template <class From, class To>
HWY_INLINE void convert_row(const From* x, int64_t count, To* out) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(load(x + i), out + i);
  for (; i < count; ++i) out[i] = from_float<To>(to_float(x[i]));
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
