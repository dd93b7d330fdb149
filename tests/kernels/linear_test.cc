#include "kernels/linear.h"

#include "kernels/device_plan.h"
#include "kernels/dry_run.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

const LinearShape kLinearShapes[] = {{0, 8, 8},     {1, 1, 1},     {1, 64, 192}, {3, 7, 5},
                                     {17, 33, 66},  {130, 96, 64}, {5, 259, 31}, {2, 1537, 12},
                                     {4, 130, 70},  {6, 257, 64},  {7, 40, 130}, {12, 129, 65},
                                     {16, 300, 100}};

void check_linear(const Ops& ops, DType dtype, const LinearShape& shape,
                  LinearActivation activation, bool with_bias, DType out_dtype,
                  BoundReport& report) {
  Tensor x = make_normal(dtype, {shape.rows, shape.in}, 21);
  Tensor weight = make_normal(dtype, {shape.out, shape.in}, 22, 1 / std::sqrt(shape.in));
  Tensor bias = make_normal(DType::kF32, {shape.out}, 23);
  const TensorView b = with_bias ? bias.view() : TensorView();
  const std::vector<Bounded> expected = expect_linear(
      x, weight, b, activation, epilogue_errors(ops, shape.rows, with_bias, out_dtype, activation));
  std::vector<Tensor> outs;
  for (int threads : {1, 3}) {
    Stream stream = Stream::cpu(threads, Determinism::kFixed, &ops);
    const PackedLinear packed = pack_linear(stream, weight, b, dtype);
    EXPECT_EQ(packed.in(), shape.in);
    EXPECT_EQ(packed.out(), shape.out);
    EXPECT_EQ(packed.has_bias(), with_bias);
    outs.emplace_back(out_dtype, std::initializer_list<int64_t>{shape.rows, shape.out});
    linear(stream, x, packed, activation, outs.back());
    // Both x and out have strided rows.
    Tensor wide(dtype, {shape.rows, shape.in + 3}), target(out_dtype, {shape.rows, shape.out + 2});
    copy(stream, x, wide.view().slice(1, 0, shape.in));
    linear(stream, wide.view().slice(1, 0, shape.in), packed, activation,
           target.view().slice(1, 0, shape.out));
    EXPECT_TRUE(within(target.view().slice(1, 0, shape.out), expected));
  }
  EXPECT_TRUE(within(outs[0], expected, &report));
  EXPECT_TRUE(bitwise_equal(outs[0], outs[1])) << "three threads against one";
  EXPECT_TRUE(similar(outs[0], expected));
}

TEST(Linear, EqualsTheProduct) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport report(table.name + " linear " + std::string(to_string(dtype)));
      for (const LinearShape& shape : kLinearShapes)
        for (LinearActivation activation :
             {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu})
          for (bool with_bias : {false, true}) {
            SCOPED_TRACE(table.name + " " + std::string(to_string(dtype)) + " " +
                         std::to_string(shape.rows) + "x" + std::to_string(shape.in) + "x" +
                         std::to_string(shape.out) + " activation " +
                         std::to_string(static_cast<int>(activation)));
            check_linear(*table.ops, dtype, shape, activation, with_bias, dtype, report);
          }
    }
  }
}

TEST(Linear, PartialSumsStayF32) {
  for (const Ops* ops : all_ops()) {
    BoundReport report(ops->name + " linear bf16 to f32");
    for (const LinearShape& shape : kLinearShapes) {
      SCOPED_TRACE(ops->name + " rows " + std::to_string(shape.rows));
      check_linear(*ops, DType::kBF16, shape, LinearActivation::kNone, false, DType::kF32, report);
      check_linear(*ops, DType::kBF16, shape, LinearActivation::kSilu, true, DType::kF32, report);
    }
  }
}

// A device's table adds a product to what is there; rows of the sum may be strided.
TEST(Linear, AddsAProductToASum) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (const LinearShape& shape : kLinearShapes)
        for (bool with_bias : {false, true}) {
          SCOPED_TRACE(table.name + " " + std::string(to_string(dtype)) + " " +
                       std::to_string(shape.rows) + "x" + std::to_string(shape.in) + "x" +
                       std::to_string(shape.out));
          Stream stream = Stream::cpu(1, Determinism::kFixed, table.ops);
          const Tensor x = make_normal(dtype, {shape.rows, shape.in}, 21),
                       weight =
                           make_normal(dtype, {shape.out, shape.in}, 22, 1 / std::sqrt(shape.in)),
                       bias = make_normal(DType::kF32, {shape.out}, 23),
                       before = make_normal(DType::kF32, {shape.rows, shape.out}, 24);
          const TensorView b = with_bias ? bias.view() : TensorView();
          const PackedLinear packed = pack_linear(stream, weight, b, dtype);
          if (!table.ops->fused.linear_add || shape.rows == 0) {
            EXPECT_FALSE(adds_in_place(stream, packed, shape.rows));
            continue;
          }
          const Tensor wide(DType::kF32, {shape.rows, shape.out + 4});
          const TensorView sum = wide.view().slice(1, 0, shape.out);
          copy(stream, before, sum);
          linear_add(stream, x, packed, sum);
          std::vector<Bounded> expected = expect_linear(x, weight, b, LinearActivation::kNone);
          for (size_t i = 0; i < expected.size(); ++i) {
            const double old = before.as<float>()[i];
            expected[i].bound += 2 * kUnit32 * (std::fabs(expected[i].value) + std::fabs(old));
            expected[i].value += old;
          }
          EXPECT_TRUE(within(sum, expected));
        }
  }
}

TEST(Linear, PackingRoundsOnceAndOutlivesItsSource) {
  for (const Ops* ops : all_ops())
    for (DType source : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      SCOPED_TRACE(ops->name + " from " + std::string(to_string(source)));
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      // Rows of a wider matrix make a strided weight view.
      Tensor exact = make_normal(DType::kF32, {20, 48}, 24),
             x = make_normal(DType::kBF16, {4, 30}, 25);
      Tensor rounded(DType::kBF16, {20, 30}), out(DType::kBF16, {4, 20}),
          again(DType::kBF16, {4, 20});
      PackedLinear packed;
      {
        Tensor weight(source, {20, 48});
        copy(stream, exact, weight);
        copy(stream, weight.view().slice(1, 9, 30), rounded);
        packed = pack_linear(stream, weight.view().slice(1, 9, 30), {}, DType::kBF16);
        fill_zero(stream, weight);
      }
      linear(stream, x, packed, LinearActivation::kNone, out);
      const PackedLinear dense = pack_linear(stream, rounded, {}, DType::kBF16);
      linear(stream, x, dense, LinearActivation::kNone, again);
      EXPECT_TRUE(bitwise_equal(out, again));
      EXPECT_GE(packed.bytes(), 20u * 30u * 2u);
    }
}

// The tiles of a piece fill whole waves of an H200's multiprocessors as far as pieces of up to 8192
// rows can.
TEST(Linear, RowsAtOnceFillTheDevice) {
  struct Case {
    int64_t rows, width, hidden;
    double share;  // of the multiprocessors that are busy, at least
  };
  for (const auto& [rows, width, hidden, share] : {Case{32760, 1536, 8960, 0.98},
                                                   {75600, 5120, 13824, 0.99},
                                                   {32760, 5120, 13824, 0.99},
                                                   {18480, 3072, 14336, 0.96},
                                                   {4096, 3072, 12288, 0.969},
                                                   {4608, 3072, 12288, 0.87}}) {
    const std::vector<MatrixExtents> matrices{{hidden, width}, {width, hidden}};
    const int64_t piece = rows_in_waves(rows, matrices, 132);
    EXPECT_GT(piece, 0);
    EXPECT_LE(piece, std::min<int64_t>(rows, 8192));
    double waves = 0, tiles = 0;
    for (int64_t row = 0; row < rows; row += piece)
      for (const auto& [out, in] : matrices) {
        const auto count = static_cast<double>(std::min(piece, rows - row)) / 128;
        waves += std::ceil(std::ceil(count) * std::ceil(static_cast<double>(out) / 256) / 132) * in;
        tiles += count * static_cast<double>(out) / 256 / 132 * in;
      }
    EXPECT_GE(tiles / waves, share) << rows << "x" << width << " in " << piece;
  }
  for (const int64_t rows : {1, 5, 127, 128, 2049})
    for (const int processors : {1, 7, 132}) {
      const int64_t piece = rows_in_waves(rows, std::vector<MatrixExtents>{{8, 8}}, processors);
      EXPECT_TRUE(piece > 0 && piece <= rows) << rows << " on " << processors;
    }
}

// Also where the machine multiplies bf16 and oneDNN chooses the layout of the weights.
TEST(Linear, ADryRunTakesTheBytesOfTheWeights) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool with_bias : {false, true})
      for (const int threads : {1, 3})
        for (const auto& [out, in] : std::vector<std::array<int64_t, 2>>{
                 {1, 1}, {3, 7}, {64, 64}, {66, 33}, {192, 100}, {130, 1537}, {1536, 256}}) {
          const Tensor weight = make_normal(dtype, {out, in}, 31),
                       bias = make_normal(DType::kF32, {out}, 32);
          const TensorView b = with_bias ? bias.view() : TensorView();
          Stream host = Stream::cpu(threads);
          const PackedLinear packed = pack_linear(host, weight, b, dtype);
          DryRun dry;
          const PackedLinear measured = pack_linear(dry.stream(), weight, b, dtype);
          EXPECT_EQ(measured.bytes(), packed.bytes())
              << to_string(dtype) << " " << out << "x" << in << " threads " << threads;
        }
}

TEST(Linear, RowsDoNotDependOnTheirNeighbours) {
  // The bits of a row are the same alone, among a few rows and among many; uneven splits over ranks
  // rely on it.
  constexpr int64_t kRows = 40, kIn = 300, kOut = 150;
  for (const Table& table : all_tables()) {
    // Libraries choose the order of additions by the shape.
    if (table.name == "cuda") continue;
    if (table.ops == &cpu_ops() && table.ops != &reference_ops()) continue;
    const UseTarget use(table);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Stream stream = Stream::cpu(2, Determinism::kFixed, table.ops);
      Tensor x = make_normal(dtype, {kRows, kIn}, 26), weight = make_normal(dtype, {kOut, kIn}, 27);
      Tensor all(dtype, {kRows, kOut});
      const PackedLinear packed = pack_linear(stream, weight, {}, dtype);
      linear(stream, x, packed, LinearActivation::kNone, all);
      for (int64_t rows = 1; rows <= 20; ++rows) {
        Tensor some(dtype, {rows, kOut});
        linear(stream, x.view().slice(0, 5, rows), packed, LinearActivation::kNone, some);
        EXPECT_TRUE(bitwise_equal(all.view().slice(0, 5, rows), some)) << table.name << " " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace weft::test
