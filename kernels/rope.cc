#include "kernels/rope.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/norm.h"
#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

namespace {

// Writes the cosines and sines of positions[i] theta^(-j / pairs) to table [positions, pairs, 2],
// whose rows are `columns` values apart.
void write_angles(std::span<const double> positions, int pairs, double theta, float* table,
                  int64_t columns) {
  std::vector<double> omega(pairs);
  for (int j = 0; j < pairs; ++j) omega[j] = std::pow(theta, -static_cast<double>(j) / pairs);
  for (size_t i = 0; i < positions.size(); ++i) {
    float* row = table + static_cast<int64_t>(i) * columns;
    for (int j = 0; j < pairs; ++j) {
      const double angle = positions[i] * omega[j];
      *row++ = static_cast<float>(std::cos(angle));
      *row++ = static_cast<float>(std::sin(angle));
    }
  }
}

std::vector<double> line(int64_t tokens, int64_t start) {
  std::vector<double> positions(static_cast<size_t>(tokens));
  std::iota(positions.begin(), positions.end(), static_cast<double>(start));
  return positions;
}

// Makes a table [positions, pairs, 2].
Tensor angle_table(std::span<const double> positions, int pairs, double theta) {
  Tensor out(DType::kF32, {static_cast<int64_t>(positions.size()), pairs, 2});
  write_angles(positions, pairs, theta, out.as<float>(), 2 * int64_t{pairs});
  return out;
}

Tensor angle_table(int64_t tokens, int64_t start, int pairs, double theta) {
  return angle_table(line(tokens, start), pairs, theta);
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
  rope.theta = theta;
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
  rope.theta = theta;
  return rope;
}

Rope make_diagonal_rope(int64_t tokens, int64_t start, const std::array<int, 3>& pairs,
                        double theta) {
  const int all = pairs[0] + pairs[1] + pairs[2];
  Rope rope;
  rope.grid = {tokens, 1, 1};
  rope.start = {start, 0, 0};
  rope.pairs = {all, 0, 0};
  rope.table[0] = Tensor(DType::kF32, {tokens, all, 2});
  float* table = rope.table[0].as<float>();
  for (const int own : pairs) {
    write_angles(line(tokens, start), own, theta, table, 2 * int64_t{all});
    table += 2 * own;
  }
  return rope;
}

Rope on_device(Stream& stream, const Rope& rope) {
  Rope out;
  out.grid = rope.grid;
  out.start = rope.start;
  out.pairs = rope.pairs;
  out.order = rope.order;
  out.theta = rope.theta;
  for (int axis = 0; axis < 3; ++axis) {
    const TensorView& table = rope.table[axis];
    if (!table) continue;
    out.table[axis] = Tensor(DType::kF32, table.shape(), stream.device());
    copy(stream, table, out.table[axis]);
  }
  return out;
}

Rope with_frame_positions(Stream& stream, const Rope& rope, std::span<const double> frames) {
  CHECK(static_cast<int64_t>(frames.size()) == rope.grid[0] && rope.theta > 0, "positions",
        frames.size(), "of", rope.grid[0]);
  Rope out = on_device(stream, rope);
  copy(stream, angle_table(frames, rope.pairs[0], rope.theta), out.table[0]);
  return out;
}

namespace {

void check_rotation(const Stream& stream, const TensorView& x, const Rope& rope,
                    int64_t first_token, const TensorView& out) {
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
}

}  // namespace

void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  check_rotation(stream, x, rope, first_token, out);
  if (x.count() == 0) return;
  stream.ops().rope.apply_rope(stream, x, rope, first_token, out);
}

TensorView head_rows(const TensorView& x) {
  CHECK(x.rank == 3 && (x[1] == 1 || x.stride[1] == x[2]), "x", x.to_string_shape());
  TensorView rows(x.data, x.dtype, {x[0], x[1] * x[2]}, x.device);
  rows.stride[0] = x.stride[0];
  return rows;
}

void norm_heads(Stream& stream, const TensorView& x, const HeadNorm& norm) {
  const TensorView rows = norm.weight.count() == x[2] ? x : head_rows(x);
  rms_norm(stream, rows, norm.weight, norm.eps, rows);
}

void rms_norm_rope(Stream& stream, const TensorView& x, const HeadNorm& norm, const Rope& rope,
                   int64_t first_token, const TensorView& out) {
  check_rotation(stream, x, rope, first_token, out);
  const int64_t size = norm.weight.count();
  CHECK(is_vector(stream, norm.weight, size) && (size == x[2] || size == x[1] * x[2]), "weight",
        size, "x", x.to_string_shape());
  if (x.count() == 0) return;
  if (computes_on_device(stream) && rope.order == RopePairs::kNeighbours)
    return stream.ops().fused.rms_norm_rope(stream, x, norm, rope, first_token, out);
  const bool heads = size == x[2];
  rms_norm(stream, heads ? x : head_rows(x), norm.weight, norm.eps, heads ? out : head_rows(out));
  apply_rope(stream, out, rope, first_token, out);
}

}  // namespace weft
