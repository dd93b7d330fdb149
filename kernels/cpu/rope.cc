// Reference rotary embedding.
#include "kernels/rope.h"

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

// Rotates row t of x, which is the token `token`.
template <class T>
void rotate_token(const TensorView& x, int64_t t, const Rope& rope, int64_t token,
                  const TensorView& out) {
  const int64_t plane = rope.grid[1] * rope.grid[2];
  const int64_t index[3] = {token / plane, token % plane / rope.grid[2], token % rope.grid[2]};
  const bool halves = rope.order == RopePairs::kHalves;
  const int64_t step = halves ? 1 : 2, partner = halves ? rope.pairs[0] : 1;
  for (int64_t h = 0; h < x[1]; ++h) {
    const T* in = x.as<T>() + t * x.stride[0] + h * x.stride[1];
    T* to = out.as<T>() + t * out.stride[0] + h * out.stride[1];
    for (int axis = 0; axis < 3; ++axis) {
      if (rope.pairs[axis] == 0) continue;
      const float* table = rope.table[axis].as<float>() + index[axis] * rope.pairs[axis] * 2;
      for (int j = 0; j < rope.pairs[axis]; ++j, in += step, to += step) {
        const float cosine = table[2 * j], sine = table[2 * j + 1];
        const float real = to_float(in[0]), imaginary = to_float(in[partner]);
        to[0] = from_float<T>(real * cosine - imaginary * sine);
        to[partner] = from_float<T>(real * sine + imaginary * cosine);
      }
    }
  }
}

void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(stream, x[0], row_grain(x[1] * x[2]), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) rotate_token<T>(x, t, rope, first_token + t, out);
    });
  });
}

}  // namespace

void fill_rope_reference(Ops& ops) { ops.rope = {.apply_rope = apply_rope}; }

}  // namespace weft::cpu
