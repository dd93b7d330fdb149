#include <limits>

#include "kernels/cpu/attention_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/online_softmax_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/tile-inl.h"

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

void online_softmax(const OnlineSoftmaxRows& block) {
  const TileTag d;
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const TileVec scale = hn::Set(d, block.scale);
  for (int64_t r = 0; r < block.rows; ++r) {
    float* row = block.logits + r * block.keys;
    const float* add = block.add ? block.add + r * block.add_stride : nullptr;
    TileVec most = hn::Set(d, kMinusInfinity);
    over_row(block.keys, [&](auto load, auto, auto only) {
      const TileVec x = add ? hn::MulAdd(load(row), scale, load(add)) : hn::Mul(load(row), scale);
      most = hn::Max(most, only(x, kMinusInfinity));
    });
    const float before = block.top[r];
    const float top = std::max(before, hn::GetLane(hn::MaxOfLanes(d, most)));
    // No key has been seen yet if the maximum is -inf: any finite shift then turns -inf into 0.
    const float shift = top == kMinusInfinity ? 0 : top;
    const TileVec down = hn::Set(d, -shift);
    TileVec sum = hn::Zero(d);
    over_row(block.keys, [&](auto load, auto store, auto only) {
      const TileVec x = add ? hn::MulAdd(load(row), scale, load(add)) : hn::Mul(load(row), scale);
      const TileVec p = exp_f32(hn::Add(x, down));
      sum = hn::Add(sum, only(p, 0));
      store(p, row);
    });
    if (block.narrow) convert_row(row, block.keys, block.narrow + r * block.keys);
    const float rescale = hn::GetLane(exp_f32(hn::Set(d, before - shift)));
    block.top[r] = top;
    block.total[r] = block.total[r] * rescale + hn::GetLane(hn::SumOfLanes(d, sum));
    if (rescale == 1) continue;
    float* sums = block.sums + r * block.size;
    const TileVec factor = hn::Set(d, rescale);
    over_row(block.size,
             [&](auto load, auto store, auto) { store(hn::Mul(load(sums), factor), sums); });
  }
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
