#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/online_softmax_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// Calls body(load, store, only) for whole vectors and once for the rest, whose missing lanes load
// as 0 and are not stored; only(x, other) puts `other` into those lanes.
template <class Body>
HWY_INLINE void over_row(int64_t count, Body&& body) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    body([&](const float* x) { return hn::LoadU(d, x + i); },
         [&](TileVec value, float* x) { hn::StoreU(value, d, x + i); },
         [](TileVec value, float) { return value; });
  if (i == count) return;
  const auto mask = hn::FirstN(d, static_cast<size_t>(count - i));
  body([&](const float* x) { return hn::MaskedLoad(mask, d, x + i); },
       [&](TileVec value, float* x) { hn::BlendedStore(value, mask, d, x + i); },
       [&](TileVec value, float other) { return hn::IfThenElse(mask, value, hn::Set(d, other)); });
}

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896341f;

// The largest of a row's logits, scaled and with the terms that are added to them.
template <bool kAdds>
HWY_INLINE float row_top(const float* row, int64_t keys, float scale, const float* add) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kMaxima = 4;  // side by side, so that none waits for the one before
  TileVec most[kMaxima];
  for (TileVec& one : most) one = hn::Set(d, kMinusInfinity);
  int64_t i = 0;
  if constexpr (!kAdds)
    for (; i + kMaxima * lanes <= keys; i += kMaxima * lanes)
#pragma GCC unroll 4
      for (int m = 0; m < kMaxima; ++m)
        most[m] = hn::Max(most[m], hn::Mul(hn::LoadU(d, row + i + m * lanes), hn::Set(d, scale)));
  over_row(keys - i, [&](auto load, auto, auto only) {
    TileVec x = hn::Mul(load(row + i), hn::Set(d, scale));
    if constexpr (kAdds) x = hn::MulAdd(load(row + i), hn::Set(d, scale), load(add + i));
    most[0] = hn::Max(most[0], only(x, kMinusInfinity));
  });
  const TileVec all = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  return hn::GetLane(hn::MaxOfLanes(d, all));
}

// Turns a row's logits x into probabilities e^(x - shift), and returns their sum.
template <bool kAdds>
HWY_INLINE float row_exp(float* row, int64_t keys, float scale, const float* add, float shift) {
  const TileTag d;
  const TileVec down = hn::Set(d, -shift);
  TileVec sum = hn::Zero(d);
  over_row(keys, [&](auto load, auto store, auto only) {
    TileVec x = hn::Mul(load(row), hn::Set(d, scale));
    if constexpr (kAdds) x = hn::MulAdd(load(row), hn::Set(d, scale), load(add));
    const TileVec p = exp_f32(hn::Add(x, down));
    sum = hn::Add(sum, only(p, 0));
    store(p, row);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// The same as row_exp, with the probabilities in bf16: they are rounded to 8 bits, so ties need not
// go to even, and one fused multiply-add makes the argument of the power of two.
template <bool kAdds>
HWY_INLINE float row_exp(const float* row, int64_t keys, float scale, const float* add, float shift,
                         bf16* out) {
  const TileTag d;
  const hn::RebindToUnsigned<TileTag> d32;
  const hn::Rebind<uint16_t, TileTag> d16;
  const TileVec factor = hn::Set(d, scale * kLog2E), down = hn::Set(d, -shift * kLog2E);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  TileVec sum = hn::Zero(d);
  const auto power = [&](TileVec x, TileVec term) {
    if constexpr (kAdds)
      return exp2_small<true>(hn::MulAdd(x, factor, hn::MulAdd(term, hn::Set(d, kLog2E), down)));
    else
      return exp2_small<false>(hn::MulAdd(x, factor, down));
  };
  const auto narrowed = [&](TileVec p) {
    const auto bits = hn::Add(hn::BitCast(d32, p), hn::Set(d32, 0x8000u));
    return hn::TruncateTo(d16, hn::ShiftRight<16>(bits));
  };
  int64_t i = 0;
  for (; i + lanes <= keys; i += lanes) {
    const TileVec p = power(hn::LoadU(d, row + i), kAdds ? hn::LoadU(d, add + i) : hn::Zero(d));
    sum = hn::Add(sum, p);
    hn::StoreU(narrowed(p), d16, reinterpret_cast<uint16_t*>(out + i));
  }
  if (i < keys) {
    const auto rest = static_cast<size_t>(keys - i);
    const auto mask = hn::FirstN(d, rest);
    const TileVec p = power(hn::MaskedLoad(mask, d, row + i),
                            kAdds ? hn::MaskedLoad(mask, d, add + i) : hn::Zero(d));
    sum = hn::Add(sum, hn::IfThenElseZero(mask, p));
    hn::BlendedStore(narrowed(p), hn::FirstN(d16, rest), d16, reinterpret_cast<uint16_t*>(out + i));
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <bool kAdds>
HWY_INLINE void online_softmax_row(const OnlineSoftmaxRows& block, int64_t r) {
  const TileTag d;
  float* row = block.logits + r * block.keys;
  bf16* narrow = block.narrow ? block.narrow + r * block.keys : nullptr;
  const float* add = kAdds ? block.add + r * block.add_stride : nullptr;
  const float before = block.top[r];
  const int64_t visible = std::clamp<int64_t>(block.first_seen + r, 0, block.keys);
  const float top = std::max(before, row_top<kAdds>(row, visible, block.scale, add));
  const bool any = top > kMinusInfinity || std::isnan(top);  // else no key has been seen yet
  const int64_t seen = any ? visible : 0;
  const float shift = any ? top : 0;
  if (narrow)
    std::fill(narrow + seen, narrow + block.keys, bf16{});
  else
    std::fill(row + seen, row + block.keys, 0.0f);
  const float sum = narrow ? row_exp<kAdds>(row, seen, block.scale, add, shift, narrow)
                           : row_exp<kAdds>(row, seen, block.scale, add, shift);
  const float rescale = hn::GetLane(exp_f32(hn::Set(d, before - shift)));
  block.top[r] = top;
  block.total[r] = block.total[r] * rescale + sum;
  if (rescale == 1) return;
  float* sums = block.sums + r * block.size;
  const TileVec factor = hn::Set(d, rescale);
  over_row(block.size,
           [&](auto load, auto store, auto) { store(hn::Mul(load(sums), factor), sums); });
}

void online_softmax(const OnlineSoftmaxRows& block) {
  for (int64_t r = 0; r < block.rows; ++r)
    block.add ? online_softmax_row<true>(block, r) : online_softmax_row<false>(block, r);
}

// Divides in place.
void divide(float* x, int64_t count, float by) {
  const TileTag d;
  const TileVec divisor = hn::Set(d, by);
  over_row(count, [&](auto load, auto store, auto) { store(hn::Div(load(x), divisor), x); });
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(online_softmax);
HWY_EXPORT(divide);

void online_softmax_rows(const OnlineSoftmaxRows& block) {
  HWY_DYNAMIC_DISPATCH(online_softmax)(block);
}
void divide_row(float* x, int64_t count, float by) { HWY_DYNAMIC_DISPATCH(divide)(x, count, by); }

}  // namespace weft::cpu
#endif
