#include "kernels/rope.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/copy.h"
#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

namespace {

// Makes [tokens, pairs, 2] cosines and sines of (start + i) theta^(-j / pairs).
Tensor angle_table(int64_t tokens, int64_t start, int pairs, double theta) {
  Tensor out(DType::kF32, {tokens, pairs, 2});
  float* table = out.as<float>();
  std::vector<double> omega(pairs);
  for (int j = 0; j < pairs; ++j) omega[j] = std::pow(theta, -static_cast<double>(j) / pairs);
  for (int64_t i = 0; i < tokens; ++i)
    for (int j = 0; j < pairs; ++j) {
      const double angle = static_cast<double>(start + i) * omega[j];
      *table++ = static_cast<float>(std::cos(angle));
      *table++ = static_cast<float>(std::sin(angle));
    }
  return out;
}

}  // namespace

Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start, int head_dim,
               double theta) {
  CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim >= 6, "head_dim", head_dim);
  // Rows and columns each get the largest even number of dimensions up to a third; frames get the
  // rest.
  const int side = head_dim / 6;
  return make_rope(grid, start, {head_dim / 2 - 2 * side, side, side}, theta);
}

Rope make_rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
               const std::array<int, 3>& pairs, double theta) {
  Rope rope;
  rope.grid = grid;
  rope.start = start;
  rope.pairs = pairs;
  for (int axis = 0; axis < 3; ++axis)
    rope.table[axis] = angle_table(grid[axis], start[axis], rope.pairs[axis], theta);
  return rope;
}

Rope make_line_rope(int64_t tokens, int64_t start, int head_dim, double theta, RopePairs order) {
  CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim", head_dim);
  Rope rope;
  rope.grid = {tokens, 1, 1};
  rope.start = {start, 0, 0};
  rope.pairs = {head_dim / 2, 0, 0};
  rope.table[0] = angle_table(tokens, start, head_dim / 2, theta);
  rope.order = order;
  return rope;
}

Rope on_device(Stream& stream, const Rope& rope) {
  Rope out;
  out.grid = rope.grid;
  out.start = rope.start;
  out.pairs = rope.pairs;
  out.order = rope.order;
  for (int axis = 0; axis < 3; ++axis) {
    const TensorView& table = rope.table[axis];
    if (!table) continue;
    out.table[axis] = Tensor(DType::kF32, table.shape(), stream.device());
    copy(stream, table, out.table[axis]);
  }
  return out;
}

void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  CHECK(x.rank == 3 && is_compute(x.dtype) && x.dtype == out.dtype && same_shape(x, out) &&
            x.device == stream.device() && out.device == stream.device(),
        "x", x.to_string_shape(), "out", out.to_string_shape());
  CHECK((x[2] == 1 || x.stride[2] == 1) && (x[2] == 1 || out.stride[2] == 1), "stride", x.stride[2],
        out.stride[2]);
  CHECK(x[2] == 2 * (rope.pairs[0] + rope.pairs[1] + rope.pairs[2]) &&
            (rope.order == RopePairs::kNeighbours || x[2] == 2 * rope.pairs[0]),
        "x", x.to_string_shape());
  for (const Tensor& table : rope.table)
    CHECK(!table || table.view().device == stream.device(), "the tables are not on the device");
  CHECK(rope.grid[0] * rope.grid[1] * rope.grid[2] <= std::numeric_limits<int32_t>::max(), "grid");
  CHECK(first_token >= 0 && first_token + x[0] <= rope.grid[0] * rope.grid[1] * rope.grid[2],
        "first token", first_token, "of", x.to_string_shape(), "grid", rope.grid[0], rope.grid[1],
        rope.grid[2]);
  if (x.count() == 0) return;
  stream.ops().rope.apply_rope(stream, x, rope, first_token, out);
}

}  // namespace weft
