// Loads and stores vectors of f32 from and to rows of f32 or bf16, with tails. The file is compiled
// once per SIMD target.
#if defined(WEFT_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_CPU_ROWS_INL_H_
#undef WEFT_KERNELS_CPU_ROWS_INL_H_
#else
#define WEFT_KERNELS_CPU_ROWS_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/tile-inl.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

using RowTag = TileTag;
using RowVec = TileVec;

HWY_INLINE int64_t row_lanes() { return static_cast<int64_t>(hn::Lanes(RowTag())); }

// Loads the first n < lanes elements and zeros behind them; nothing beyond x[n - 1] is read.
template <class T>
HWY_INLINE RowVec load_part(const T* x, int64_t n) {
  T padded[16] = {};
  std::memcpy(padded, x, static_cast<size_t>(n) * sizeof(T));
  return load(padded);
}

template <class T>
HWY_INLINE void store_part(RowVec value, T* out, int64_t n) {
  T padded[16];
  store(value, padded);
  std::memcpy(out, padded, static_cast<size_t>(n) * sizeof(T));
}

// x / (1 + e^-a), that is x sigmoid(a). It is 0 where the quotient leaves the range of f32, also
// for infinite x. NaN in x stays.
HWY_INLINE RowVec gate(RowVec x, RowVec a) {
  const RowTag d;
  const RowVec minus = hn::Neg(a);
  const RowVec y = hn::Div(x, hn::Add(hn::Set(d, 1.0f), exp_f32(minus)));
  return hn::IfThenZeroElse(hn::Gt(minus, hn::Set(d, 88.0f)), y);
}

HWY_INLINE RowVec silu(RowVec x) { return gate(x, x); }

// 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
HWY_INLINE RowVec gelu_tanh(RowVec x) {
  const RowTag d;
  constexpr float kFactor = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  const RowVec inner =
      hn::Add(hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715f * kFactor)), hn::Set(d, kFactor));
  return gate(x, hn::Mul(x, inner));
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
