// The merge of two attention states with Highway. It does the operations of the reference in the
// same order with one rounding each, so the bits are equal, and swapping the states changes none.
// This file must be compiled without contraction to fused multiply-add.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/merge_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// a[x] = (weight_a a[x] + weight_b b[x]) / (weight_a + weight_b)
void merge_row(float* a, const float* b, int64_t count, float weight_a, float weight_b) {
  const RowTag d;
  const RowVec wa = hn::Set(d, weight_a), wb = hn::Set(d, weight_b);
  const RowVec total = hn::Set(d, weight_a + weight_b);
  const int64_t lanes = row_lanes();
  const auto merged = [&](RowVec x, RowVec y) {
    return hn::Div(hn::Add(hn::Mul(wa, x), hn::Mul(wb, y)), total);
  };
  int64_t x = 0;
  for (; x + lanes <= count; x += lanes) store(merged(load(a + x), load(b + x)), a + x);
  if (x < count)
    store_part(merged(load_part(a + x, count - x), load_part(b + x, count - x)), a + x, count - x);
}

void merge(const Stream& stream, const TensorView& out_a, const TensorView& lse_a,
           const TensorView& out_b, const TensorView& lse_b) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  const int64_t rows = out_a[0], heads = out_a[1], e = out_a[2];
  parallel_for(stream, rows, row_grain(heads * e), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t h = 0; h < heads; ++h) {
        float& la = static_cast<float*>(lse_a.data)[h * lse_a.stride[0] + i * lse_a.stride[1]];
        const float lb =
            static_cast<const float*>(lse_b.data)[h * lse_b.stride[0] + i * lse_b.stride[1]];
        float* a = static_cast<float*>(out_a.data) + i * out_a.stride[0] + h * out_a.stride[1];
        const float* b =
            static_cast<const float*>(out_b.data) + i * out_b.stride[0] + h * out_b.stride[1];
        const float top = std::max(la, lb);
        if (la == lb && top == kMinusInfinity) {
          std::fill_n(a, e, 0.0f);
          continue;
        }
        const float weight_a = std::exp(la - top), weight_b = std::exp(lb - top);
        merge_row(a, b, e, weight_a, weight_b);
        la = top + std::log(weight_a + weight_b);
      }
  });
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(merge);

namespace {

void merge_attention(Stream& stream, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b) {
  HWY_DYNAMIC_DISPATCH(merge)(stream, out_a, lse_a, out_b, lse_b);
}

}  // namespace

void fill_merge_simd(Ops& ops) { ops.attention.merge_attention = merge_attention; }

}  // namespace weft::cpu
#endif
