// Loads and stores vectors of f32 from and to rows of f32 or bf16, with tails. The file is compiled
// once per SIMD target.
#if defined(WEFT_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_CPU_ROWS_INL_H_
#undef WEFT_KERNELS_CPU_ROWS_INL_H_
#else
#define WEFT_KERNELS_CPU_ROWS_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/exponential-inl.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

using RowTag = TileTag;
using RowVec = TileVec;

HWY_INLINE int64_t row_lanes() { return static_cast<int64_t>(hn::Lanes(RowTag())); }

// The targets whose masked loads and stores of f32 leave alone what is masked off.
inline constexpr bool kMasksFloats = !HWY_MEM_OPS_MIGHT_FAULT || HWY_TARGET == HWY_AVX2;

// Loads the first n < lanes elements and zeros after them; nothing beyond x[n - 1] is read.
template <class T>
HWY_INLINE RowVec load_part(const T* x, int64_t n) {
  if constexpr (kMasksFloats && std::is_same_v<T, float>)
    return hn::MaskedLoad(hn::FirstN(RowTag(), static_cast<size_t>(n)), RowTag(), x);
  T padded[16] = {};
  std::memcpy(padded, x, static_cast<size_t>(n) * sizeof(T));
  return load(padded);
}

template <class T>
HWY_INLINE void store_part(RowVec value, T* out, int64_t n) {
  if constexpr (kMasksFloats && std::is_same_v<T, float>)
    return hn::BlendedStore(value, hn::FirstN(RowTag(), static_cast<size_t>(n)), RowTag(), out);
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

// x erfc(-z) / 2, z = x / sqrt 2. For z > 0, erfc(z) / 2 = e^-z^2 t p(t) with t = 1 / (1 + 0.4 z);
// p is a minimax polynomial whose relative error is at most 7e-9 up to z = 9.45, beyond which the
// power leaves the range of f32. erfc(-z) = 2 - erfc(z).
HWY_INLINE RowVec gelu_erf(RowVec x) {
  const RowTag d;
  const RowVec one = hn::Set(d, 1.0f);
  const RowVec t = hn::Div(one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.282842712f), one));
  RowVec p = hn::Set(d, -0.0153492805f);
  p = hn::MulAdd(p, t, hn::Set(d, 0.102020279f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.256532636f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.283282766f));
  p = hn::MulAdd(p, t, hn::Set(d, -0.150195975f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.140368984f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.0633271497f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.107787042f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.112436142f));
  p = hn::MulAdd(p, t, hn::Set(d, 0.112855532f));
  const RowVec power = exp_f32(hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f)));
  const RowVec tail = hn::Mul(hn::Mul(t, p), power);
  return hn::Mul(x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)));
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
