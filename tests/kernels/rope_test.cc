#include "kernels/rope.h"

#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

struct Grid {
  std::array<int64_t, 3> grid, start;
  int64_t first, tokens;
};

// The rotation by its definition, with angles in f64 from the token's global position.
std::vector<Bounded> expect_rope(const TensorView& x, const Grid& grid) {
  const int64_t heads = x[1], e = x[2], side = 2 * (e / 6);
  const std::vector<double> in = to_f64(x);
  std::vector<Bounded> out(in.size());
  for (int64_t t = 0; t < x[0]; ++t) {
    const int64_t token = grid.first + t, plane = grid.grid[1] * grid.grid[2];
    const int64_t position[3] = {grid.start[0] + token / plane,
                                 grid.start[1] + token / grid.grid[2] % grid.grid[1],
                                 grid.start[2] + token % grid.grid[2]};
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < e; i += 2) {
        const int axis = i < e - 2 * side ? 0 : i < e - side ? 1 : 2;
        const int64_t width = axis == 0 ? e - 2 * side : side;
        const int64_t within_axis = i - (axis == 0 ? 0 : axis == 1 ? e - 2 * side : e - side);
        const double angle = static_cast<double>(position[axis]) *
                             std::pow(10000.0, -static_cast<double>(within_axis) / width);
        const double c = std::cos(angle), s = std::sin(angle);
        const int64_t at = (t * heads + h) * e + i;
        const double a = in[at], b = in[at + 1];
        // The error has the table's rounding, the product's and the sum's.
        out[at] = {a * c - b * s, 3 * kUnit32 * (std::fabs(a * c) + std::fabs(b * s))};
        out[at + 1] = {a * s + b * c, 3 * kUnit32 * (std::fabs(a * s) + std::fabs(b * c))};
      }
  }
  return out;
}

const Grid kGrids[] = {{{3, 4, 5}, {0, 0, 0}, 0, 60},
                       {{3, 4, 5}, {7, 2, 100}, 13, 29},
                       {{2, 3, 4}, {-5, 0, 0}, 23, 1},
                       {{2, 3, 4}, {0, 0, 0}, 5, 0},
                       {{1, 16, 16}, {20, 0, 0}, 0, 256}};

TEST(Rope, EqualsItsDefinition) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    const Ops* ops = table.ops;
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport report(table.name + " apply_rope " + std::string(to_string(dtype)));
      for (const Grid& grid : kGrids)
        for (int64_t e : {6, 8, 16, 24, 64, 80, 128}) {
          SCOPED_TRACE(ops->name + " e " + std::to_string(e) + " first " +
                       std::to_string(grid.first));
          const Rope rope = make_rope(grid.grid, grid.start, static_cast<int>(e));
          Tensor x = make_normal(dtype, {grid.tokens, 3, e}, 11);
          Tensor out(dtype, {grid.tokens, 3, e});
          const std::vector<Bounded> expected = expect_rope(x, grid);
          Stream one = Stream::cpu(1, Determinism::kFixed, ops);
          Stream three = Stream::cpu(3, Determinism::kFixed, ops);
          apply_rope(one, x, rope, grid.first, out);
          EXPECT_TRUE(within(out, expected, &report));
          apply_rope(three, x, rope, grid.first, x);
          EXPECT_TRUE(bitwise_equal(x, out)) << "in place, three threads";
        }
    }
  }
}

// Text has one axis, with pairs as halves (Qwen) or as neighbours.
TEST(Rope, ALineEqualsItsDefinition) {
  constexpr int64_t kTokens = 9, kStart = 40, kFirst = 3, kHeads = 3;
  constexpr double kTheta = 1e6;
  for (const RopePairs order : {RopePairs::kHalves, RopePairs::kNeighbours})
    for (int64_t e : {2, 6, 10, 16, 34, 64, 128}) {
      const Rope rope = make_line_rope(kTokens, kStart, static_cast<int>(e), kTheta, order);
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        Tensor x = make_normal(dtype, {kTokens - kFirst, kHeads, e}, 17);
        const std::vector<double> in = to_f64(x);
        std::vector<Bounded> expected(in.size());
        for (size_t at = 0; at < in.size(); at += e)
          for (int64_t j = 0; j < e / 2; ++j) {
            const auto token = static_cast<int64_t>(at) / (e * kHeads);
            const double angle = static_cast<double>(kStart + kFirst + token) *
                                 std::pow(kTheta, -2.0 * static_cast<double>(j) / e);
            const double c = std::cos(angle), s = std::sin(angle);
            const bool halves = order == RopePairs::kHalves;
            const size_t one = at + (halves ? j : 2 * j),
                         two = at + (halves ? j + e / 2 : 2 * j + 1);
            const double a = in[one], b = in[two];
            expected[one] = {a * c - b * s, 3 * kUnit32 * (std::fabs(a * c) + std::fabs(b * s))};
            expected[two] = {a * s + b * c, 3 * kUnit32 * (std::fabs(a * s) + std::fabs(b * c))};
          }
        for (const Table& table : all_tables()) {
          SCOPED_TRACE(table.name + " e " + std::to_string(e));
          const UseTarget use(table);
          Tensor in_place = clone(x);
          Stream stream = Stream::cpu(2, Determinism::kFixed, table.ops);
          apply_rope(stream, in_place, rope, kFirst, in_place);
          EXPECT_TRUE(within(in_place, expected));
        }
      }
    }
}

// A diagonal's rows have one position on all three axes, as the tokens of a cube's diagonal do.
TEST(Rope, ADiagonalHasOnePositionOnAllAxes) {
  constexpr int64_t kTokens = 7, kStart = 5, kHeads = 2, kSize = 22;
  const std::array<int, 3> pairs{2, 4, 5};
  const Rope diagonal = make_diagonal_rope(kTokens, kStart, pairs, 10000);
  const Rope cube = make_rope({kTokens, kTokens, kTokens}, {kStart, kStart, kStart}, pairs, 10000);
  Stream stream = Stream::cpu(1);
  Tensor x = make_normal(DType::kF32, {kTokens, kHeads, kSize}, 19);
  Tensor out(DType::kF32, {kTokens, kHeads, kSize}), expected(DType::kF32, {1, kHeads, kSize});
  apply_rope(stream, x, diagonal, 0, out);
  for (int64_t i = 0; i < kTokens; ++i) {
    const int64_t token = (i * kTokens + i) * kTokens + i;
    apply_rope(stream, x.view().slice(0, i, 1), cube, token, expected);
    EXPECT_TRUE(bitwise_equal(out.view().slice(0, i, 1), expected)) << i;
  }
}

void expect_same_bits(const Rope& rope) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor x = make_normal(dtype, {60, 2, 44}, 15), expected(dtype, {60, 2, 44});
    Tensor out(dtype, {60, 2, 44});
    Stream reference = Stream::cpu(1, Determinism::kFixed, &reference_ops());
    apply_rope(reference, x, rope, 0, expected);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      Stream stream = Stream::cpu(1, Determinism::kFixed, table.ops);
      apply_rope(stream, x, rope, 0, out);
      EXPECT_TRUE(bitwise_equal(out, expected)) << table.name;
    }
  }
}

TEST(Rope, EveryTableGivesTheSameBits) {
  expect_same_bits(make_rope({3, 4, 5}, {7, 2, 100}, 44));
  expect_same_bits(make_line_rope(60, 7, 44, 1e6, RopePairs::kHalves));
}

// Positions that are whole are those of make_rope to the bit; between them angles are f64, too.
TEST(Rope, FramesMayLieBetweenWholePositions) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  const Rope rope = make_rope({4, 2, 3}, {0, 0, 0}, 44);
  const Rope whole = with_frame_positions(stream, rope, std::vector<double>{7, 8, 9, 10});
  const Rope shifted = make_rope({4, 2, 3}, {7, 0, 0}, 44);
  for (int axis = 0; axis < 3; ++axis)
    EXPECT_TRUE(bitwise_equal(whole.table[axis], shifted.table[axis])) << axis;
  const std::vector<double> positions{0, 2.0 / 3, 1e4 + 1.0 / 3, -0.5};
  const Rope between = with_frame_positions(stream, rope, positions);
  EXPECT_TRUE(bitwise_equal(between.table[1], rope.table[1]));
  const float* table = between.table[0].as<float>();
  for (const double position : positions)
    for (int j = 0; j < rope.pairs[0]; ++j) {
      const double angle = position * std::pow(10000.0, -static_cast<double>(j) / rope.pairs[0]);
      EXPECT_EQ(*table++, static_cast<float>(std::cos(angle))) << position;
      EXPECT_EQ(*table++, static_cast<float>(std::sin(angle))) << position;
    }
}

TEST(Rope, StridedRowsLeaveTheirNeighboursAlone) {
  // q lies inside a fused [n, 3, A, E] projection.
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    const Rope rope = make_rope({2, 3, 4}, {0, 0, 0}, 24);
    Tensor fused = make_normal(DType::kF32, {24, 3, 2, 24}, 12);
    Tensor before = clone(fused), dense(DType::kF32, {24, 2, 24}), out(DType::kF32, {24, 2, 24});
    copy(stream, fused.view().select(1, 1), dense);
    apply_rope(stream, dense, rope, 0, out);
    apply_rope(stream, fused.view().select(1, 1), rope, 0, fused.view().select(1, 1));
    EXPECT_TRUE(bitwise_equal(fused.view().select(1, 1), out));
    EXPECT_TRUE(bitwise_equal(fused.view().select(1, 0), before.view().select(1, 0)));
    EXPECT_TRUE(bitwise_equal(fused.view().select(1, 2), before.view().select(1, 2)));
  }
}

TEST(Rope, ACopyOnTheDeviceIsTheSame) {
  Stream stream = Stream::cpu(1);
  const Rope ropes[] = {make_rope({4, 3, 2}, {1, 2, 3}, 16),
                        make_line_rope(5, 7, 16, 1e4, RopePairs::kHalves)};
  for (const Rope& rope : ropes) {
    const Rope there = on_device(stream, rope);
    EXPECT_EQ(there.grid, rope.grid);
    EXPECT_EQ(there.start, rope.start);
    EXPECT_EQ(there.pairs, rope.pairs);
    EXPECT_EQ(there.order, rope.order);
    for (int axis = 0; axis < 3; ++axis)
      EXPECT_TRUE(!rope.table[axis] || bitwise_equal(there.table[axis], rope.table[axis]));
  }
}

TEST(Rope, AxesOfTheHeadSizesInUse) {
  EXPECT_EQ(make_rope({1, 1, 1}, {0, 0, 0}, 128).pairs, (std::array<int, 3>{22, 21, 21}));
  EXPECT_EQ(make_rope({1, 1, 1}, {0, 0, 0}, 64).pairs, (std::array<int, 3>{12, 10, 10}));
}

TEST(Rope, PartsOfAGridEqualTheWhole) {
  // A slice of tokens, and a grid that starts later, get the same angles to the bit.
  Stream stream = Stream::cpu(1);
  const Rope whole = make_rope({4, 3, 2}, {0, 0, 0}, 16);
  const Rope late = make_rope({2, 3, 2}, {2, 0, 0}, 16);
  Tensor x = make_normal(DType::kF32, {24, 1, 16}, 13);
  Tensor all(DType::kF32, {24, 1, 16}), part(DType::kF32, {12, 1, 16});
  apply_rope(stream, x, whole, 0, all);
  apply_rope(stream, x.view().slice(0, 12, 12), late, 0, part);
  EXPECT_TRUE(bitwise_equal(all.view().slice(0, 12, 12), part));
  apply_rope(stream, x.view().slice(0, 5, 12), whole, 5, part);
  EXPECT_TRUE(bitwise_equal(all.view().slice(0, 5, 12), part));
}

}  // namespace
}  // namespace weft::test
