// The exponential, and the activations that are made of it. The files that include this header
// compile it once per SIMD target.
#if defined(WEFT_KERNELS_CPU_EXPONENTIAL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_CPU_EXPONENTIAL_INL_H_
#undef WEFT_KERNELS_CPU_EXPONENTIAL_INL_H_
#else
#define WEFT_KERNELS_CPU_EXPONENTIAL_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// Adding this number to one of small magnitude rounds it: the last bits of the sum are those of the
// whole number, and taking it off again leaves that number.
HWY_INLINE TileVec to_whole() { return hn::Set(TileTag(), 0x1.8p23f); }

// e^x within 2 ulp from -87.3 to 88.3; 0 below, infinite above, NaN kept. n = round(x / ln 2), and
// e^r for |r| <= ln 2 / 2 is its series to r^7 (the next term is below 5e-9).
HWY_INLINE TileVec exp_f32(TileVec x) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const auto underflow = hn::Lt(x, hn::Set(d, -87.3f));
  // x must be the second operand: x86 returns the second operand of min and max if one is NaN. From
  // 88.4 on the exponent below is 255 and the result infinite.
  const TileVec bounded = hn::Min(hn::Set(d, 89.0f), hn::Max(hn::Set(d, -87.3f), x));
  const TileVec high = hn::Add(hn::Mul(bounded, hn::Set(d, 1.44269504088896341f)), to_whole());
  const TileVec n = hn::Sub(high, to_whole());
  // ln 2 is split in two parts; the first has 12 trailing zero bits, so n * high is exact.
  TileVec r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), bounded);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  TileVec p = hn::Set(d, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, high), hn::Set(di, 127)));
  return hn::IfThenZeroElse(underflow, hn::Mul(p, hn::BitCast(d, exponent)));
}

// 2^x within 4e-6 of itself for x <= 1; NaN kept. n = round(x), and 2^r for |r| <= 1/2 is 1 + r
// q(r) with the polynomial q of degree 3 whose largest relative error is least. 2^-125 stands for
// all below it, or 0 where that counts.
template <bool kToZero>
HWY_INLINE TileVec exp2_small(TileVec x) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const TileVec least = hn::Set(d, -125.0f);
  // x must be the second operand: x86 returns it where it is NaN.
  const TileVec bounded = hn::Max(least, x);
  const TileVec high = hn::Add(bounded, to_whole());
  const TileVec r = hn::Sub(bounded, hn::Sub(high, to_whole()));
  TileVec p = hn::Set(d, 9.78291255e-3f);
  p = hn::MulAdd(p, r, hn::Set(d, 5.59768836e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.40207111e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.93113604e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto scaled = hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, high)));
  const TileVec power = hn::BitCast(d, scaled);
  return kToZero ? hn::IfThenZeroElse(hn::Lt(x, least), power) : power;
}

HWY_INLINE TileVec activate(LinearActivation activation, TileVec x) {
  const TileTag d;
  if (activation == LinearActivation::kNone) return x;
  TileVec t = x;
  if (activation == LinearActivation::kGeluTanh) {
    // 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
    const TileVec cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715f)), x, x);
    t = hn::Mul(cubic, hn::Set(d, 2 * 0.7978845608028654f));
  }
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exp_f32(hn::Neg(t))));
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
