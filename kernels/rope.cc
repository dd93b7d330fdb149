#include "kernels/rope.h"

#include <cmath>

#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start, int head_dim,
               double theta) {
  CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim >= 6, "head_dim", head_dim);
  // Rows and columns take the even number of dimensions that a third rounds down to, frames take
  // what is left.
  const int side = head_dim / 6;
  Rope rope;
  rope.grid = grid;
  rope.start = start;
  rope.pairs = {head_dim / 2 - 2 * side, side, side};
  for (int axis = 0; axis < 3; ++axis) {
    const int pairs = rope.pairs[axis];
    rope.table[axis] = Tensor(DType::kF32, {grid[axis], pairs, 2});
    float* table = rope.table[axis].as<float>();
    for (int64_t i = 0; i < grid[axis]; ++i)
      for (int j = 0; j < pairs; ++j) {
        const double angle =
            static_cast<double>(start[axis] + i) * std::pow(theta, -static_cast<double>(j) / pairs);
        *table++ = static_cast<float>(std::cos(angle));
        *table++ = static_cast<float>(std::sin(angle));
      }
  }
  return rope;
}

void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  CHECK(x.rank == 3 && is_compute(x.dtype) && x.dtype == out.dtype && same_shape(x, out) &&
            x.device == stream.device() && out.device == stream.device(),
        "x", x.to_string_shape(), "out", out.to_string_shape());
  CHECK((x[2] == 1 || x.stride[2] == 1) && (x[2] == 1 || out.stride[2] == 1), "stride", x.stride[2],
        out.stride[2]);
  CHECK(x[2] == 2 * (rope.pairs[0] + rope.pairs[1] + rope.pairs[2]), "x", x.to_string_shape());
  CHECK(first_token >= 0 && first_token + x[0] <= rope.grid[0] * rope.grid[1] * rope.grid[2],
        "first token", first_token, "of", x.to_string_shape(), "grid", rope.grid[0], rope.grid[1],
        rope.grid[2]);
  if (x.count() == 0) return;
  stream.ops().rope.apply_rope(stream, x, rope, first_token, out);
}

}  // namespace weft
