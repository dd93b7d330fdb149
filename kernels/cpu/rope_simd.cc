// Rotary embedding with Highway. With RopePairs::kNeighbours a vector holds whole pairs, and the
// table interleaves cosines and sines in the same order. With kHalves a vector holds one side of
// the pairs, and all cosines lie before the sines. The bits are those of the reference.
#include <cstring>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"
#include "kernels/rope.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// (a, b) -> (a c - b s, b c + a s) for every pair of a head; table holds (c, s).
#if HWY_TARGET == HWY_SCALAR
// One lane holds no pair.
template <class T>
void rotate_head(const T* x, const float* table, T* out, int64_t e) {
  for (int64_t i = 0; i < e; i += 2) {
    const float a = to_float(x[i]), b = to_float(x[i + 1]);
    out[i] = from_float<T>(a * table[i] - b * table[i + 1]);
    out[i + 1] = from_float<T>(b * table[i] + a * table[i + 1]);
  }
}
#else
HWY_INLINE RowVec rotate(RowVec x, RowVec table) {
  const RowVec straight = hn::Mul(x, hn::DupEven(table));
  const RowVec crossed = hn::Mul(hn::Reverse2(RowTag(), x), hn::DupOdd(table));
  return hn::OddEven(hn::Add(straight, crossed), hn::Sub(straight, crossed));
}

template <class T>
HWY_INLINE void rotate_head(const T* x, const float* table, T* out, int64_t e) {
  const int64_t lanes = row_lanes();
  int64_t i = 0;
  for (; i + lanes <= e; i += lanes) store(rotate(load(x + i), load(table + i)), out + i);
  if (i < e)
    store_part(rotate(load_part(x + i, e - i), load_part(table + i, e - i)), out + i, e - i);
}

#endif

// (a, b) -> (a c - b s, a s + b c), a in the first half of the head, b in the second.
template <class T>
HWY_INLINE void rotate_halves(const T* x, const float* table, T* out, int64_t e) {
  const int64_t lanes = row_lanes(), half = e / 2;
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const RowVec a = load(x + i), b = load(x + half + i);
    const RowVec c = load(table + i), s = load(table + half + i);
    store(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), out + i);
    store(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), out + half + i);
  }
  if (i == half) return;
  const int64_t left = half - i;
  const RowVec a = load_part(x + i, left), b = load_part(x + half + i, left);
  const RowVec c = load_part(table + i, left), s = load_part(table + half + i, left);
  store_part(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), out + i, left);
  store_part(hn::Add(hn::Mul(a, s), hn::Mul(b, c)), out + half + i, left);
}

// Rotates all heads of row t of x.
template <class T>
void rotate_typed(const TensorView& x, int64_t t, const float* table, RopePairs order,
                  const TensorView& out) {
  const T* from = static_cast<const T*>(x.data) + t * x.stride[0];
  T* to = static_cast<T*>(out.data) + t * out.stride[0];
  for (int64_t h = 0; h < x[1]; ++h)
    if (order == RopePairs::kHalves)
      rotate_halves(from + h * x.stride[1], table, to + h * out.stride[1], x[2]);
    else
      rotate_head(from + h * x.stride[1], table, to + h * out.stride[1], x[2]);
}

void rotate_heads(const TensorView& x, int64_t t, const float* table, RopePairs order,
                  const TensorView& out) {
  (x.dtype == DType::kF32 ? rotate_typed<float> : rotate_typed<bf16>)(x, t, table, order, out);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(rotate_heads);

namespace {

// Writes the (cos, sin) pairs of one token for the three axes in turn: [E]. With kHalves the
// cosines come first, then the sines.
void fill_table(const Rope& rope, int64_t token, float* table) {
  if (rope.order == RopePairs::kHalves) {
    const int64_t pairs = rope.pairs[0];
    const float* from = rope.table[0].as<float>() + token * 2 * pairs;
    for (int64_t j = 0; j < pairs; ++j) {
      table[j] = from[2 * j];
      table[pairs + j] = from[2 * j + 1];
    }
    return;
  }
  const int64_t plane = rope.grid[1] * rope.grid[2];
  const int64_t index[3] = {token / plane, token % plane / rope.grid[2], token % rope.grid[2]};
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t width = 2 * rope.pairs[axis];
    if (width == 0) continue;
    std::memcpy(table, rope.table[axis].as<float>() + index[axis] * width, width * sizeof(float));
    table += width;
  }
}

void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  parallel_for(stream, x[0], row_grain(x[1] * x[2]), [&](int64_t begin, int64_t end) {
    float* table = thread_scratch<float>(Scratch::kRight, x[2]);
    for (int64_t t = begin; t < end; ++t) {
      fill_table(rope, first_token + t, table);
      HWY_DYNAMIC_DISPATCH(rotate_heads)(x, t, table, rope.order, out);
    }
  });
}

}  // namespace

void fill_rope_simd(Ops& ops) { ops.rope = {.apply_rope = apply_rope}; }

}  // namespace weft::cpu
#endif
