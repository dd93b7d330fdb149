#include "kernels/conv.h"

#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

struct ConvProblem {
  std::array<int64_t, 4> x;       // F, H, W, Cin
  int64_t out;                    // Cout
  std::array<int64_t, 3> kernel;  // kt, kh, kw
  ConvArgs args;
};

const ConvProblem kConvProblems[] = {
    {{1, 1, 1, 1}, 1, {1, 1, 1}, {}},
    {{2, 5, 7, 3}, 4, {1, 1, 1}, {}},
    {{3, 6, 5, 8}, 16, {3, 3, 3}, {.pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}}},
    {{4, 5, 6, 19}, 5, {3, 3, 3}, {.pad_h = {1, 1}, .pad_w = {1, 1}}},
    {{2, 9, 8, 16}, 12, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_h = {0, 1}, .pad_w = {0, 1}}},
    {{5, 4, 4, 6}, 6, {3, 1, 1}, {.stride = {2, 1, 1}}},
    {{1, 12, 10, 4}, 33, {1, 2, 2}, {.stride = {1, 2, 2}}},
    {{1, 3, 3, 32}, 24, {1, 3, 3}, {.pad_h = {2, 0}, .pad_w = {0, 3}}},
    {{2, 17, 19, 3}, 7, {2, 5, 3}, {.stride = {1, 3, 2}, .pad_front = 1, .pad_h = {2, 1}}},
    {{2, 1, 5, 3},
     4,
     {1, 1, 1},
     {.stride = {1, 2, 1}, .pad_h = {1, 0}}},         // a window of padding alone
    {{1, 2, 8, 4}, 4, {3, 3, 3}, {.pad_w = {1, 1}}},  // fewer frames than the kernel: no output
};

void check_conv(const Ops& ops, DType dtype, const ConvProblem& problem, bool with_bias,
                BoundReport& report) {
  const auto& [f, h, w, c] = problem.x;
  const auto& [kt, kh, kw] = problem.kernel;
  Tensor x = make_normal(dtype, {f, h, w, c}, 101);
  Tensor weight = make_normal(dtype, {problem.out, c, kt, kh, kw}, 102,
                              1 / std::sqrt(static_cast<double>(c * kt * kh * kw)));
  Tensor bias = make_normal(DType::kF32, {problem.out}, 103);
  const TensorView b = with_bias ? bias.view() : TensorView();
  std::vector<Tensor> outs;
  for (int threads : {1, 3}) {
    Stream stream = Stream::cpu(threads, Determinism::kFixed, &ops);
    const PackedConv packed = pack_conv(stream, weight, b, dtype);
    const std::array<int64_t, 4> shape = conv_output_shape(x, packed, problem.args);
    outs.emplace_back(dtype, std::span<const int64_t>(shape));
    conv3d(stream, x, packed, problem.args, outs.back());
    if (threads == 3) continue;
    const std::vector<Bounded> expected =
        expect_conv(x, weight, b, problem.args, shape,
                    pointwise_errors(ops, f * h * w, kt * kh * kw, with_bias, dtype));
    EXPECT_TRUE(within(outs[0], expected, &report));
    EXPECT_TRUE(similar(outs[0], expected));
  }
  EXPECT_TRUE(bitwise_equal(outs[0], outs[1])) << "three threads against one";
}

TEST(Conv, EqualsTheDefinition) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport report(table.name + " conv3d " + std::string(to_string(dtype)));
      for (const ConvProblem& problem : kConvProblems)
        for (bool with_bias : {false, true}) {
          SCOPED_TRACE(table.name + " " + std::string(to_string(dtype)) + " problem " +
                       std::to_string(&problem - kConvProblems));
          check_conv(*table.ops, dtype, problem, with_bias, report);
        }
    }
  }
}

TEST(Conv, OutputShapes) {
  Stream stream = Stream::cpu(1);
  Tensor weight(DType::kF32, {6, 4, 3, 3, 3}), x(DType::kF32, {5, 8, 9, 4});
  const PackedConv packed = pack_conv(stream, weight, {}, DType::kF32);
  EXPECT_EQ(conv_output_shape(x, packed, {}), (std::array<int64_t, 4>{3, 6, 7, 6}));
  EXPECT_EQ(conv_output_shape(
                x, packed, {.stride = {2, 2, 2}, .pad_front = 2, .pad_h = {0, 1}, .pad_w = {1, 1}}),
            (std::array<int64_t, 4>{3, 4, 5, 6}));
}

TEST(Conv, HistoryFramesEqualOnePass) {
  // Convolution is causal in time: a clip in two parts, the second with the last kt - 1 frames of
  // the first before it, equals one pass.
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Tensor x = make_normal(DType::kF32, {6, 4, 5, 8}, 104);
    Tensor weight = make_normal(DType::kF32, {8, 8, 3, 3, 3}, 105, 0.07);
    const PackedConv packed = pack_conv(stream, weight, {}, DType::kF32);
    const ConvArgs first{.pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}};
    const ConvArgs later{.pad_h = {1, 1}, .pad_w = {1, 1}};
    Tensor whole(DType::kF32, {6, 4, 5, 8}), parts(DType::kF32, {6, 4, 5, 8});
    conv3d(stream, x, packed, first, whole);
    conv3d(stream, x.view().slice(0, 0, 4), packed, first, parts.view().slice(0, 0, 4));
    conv3d(stream, x.view().slice(0, 2, 4), packed, later, parts.view().slice(0, 4, 2));
    EXPECT_LT(relative_l2(to_f64(parts), to_f64(whole)), 216 * kUnit32) << ops->name;
  }
}

TEST(Conv, TwoDimensionalWeightsAreOneFrameDeep) {
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Tensor x = make_normal(DType::kF32, {3, 6, 6, 5}, 106);
    Tensor weight = make_normal(DType::kF32, {9, 5, 3, 3}, 107);
    const PackedConv flat = pack_conv(stream, weight, {}, DType::kF32);
    const PackedConv deep =
        pack_conv(stream, weight.view().reshape({9, 5, 1, 3, 3}), {}, DType::kF32);
    Tensor out(DType::kF32, {3, 4, 4, 9}), same(DType::kF32, {3, 4, 4, 9});
    conv3d(stream, x, flat, {}, out);
    conv3d(stream, x, deep, {}, same);
    EXPECT_EQ(flat.kernel(), (std::array<int64_t, 3>{1, 3, 3}));
    EXPECT_TRUE(bitwise_equal(out, same)) << ops->name;
  }
}

TEST(Conv, PackingConvertsAndOutlivesItsSource) {
  for (const Ops* ops : all_ops())
    for (DType source : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      Tensor exact = make_normal(DType::kBF16, {8, 6, 1, 3, 3}, 108);
      Tensor x = make_normal(DType::kF32, {1, 5, 5, 6}, 109);
      Tensor out(DType::kF32, {1, 3, 3, 8}), same(DType::kF32, {1, 3, 3, 8});
      PackedConv packed;
      {
        Tensor weight(source, {8, 6, 1, 3, 3}), rounded(DType::kF32, {8, 6, 1, 3, 3});
        copy(stream, exact, weight);
        copy(stream, weight, rounded);
        packed = pack_conv(stream, weight, {}, DType::kF32);
        conv3d(stream, x, pack_conv(stream, rounded, {}, DType::kF32), {}, same);
        fill_zero(stream, weight);
      }
      conv3d(stream, x, packed, {}, out);
      EXPECT_TRUE(bitwise_equal(out, same)) << ops->name;
    }
}

TEST(Conv, UpsampleNearest2) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (int64_t c : {1, 3, 16, 35}) {
        SCOPED_TRACE(ops->name + " c " + std::to_string(c));
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        Tensor x = make_normal(dtype, {2, 3, 5, c}, 110), out(dtype, {2, 6, 10, c});
        upsample_nearest2(stream, x, out);
        for (int64_t f = 0; f < 2; ++f)
          for (int64_t h = 0; h < 6; ++h)
            for (int64_t w = 0; w < 10; ++w)
              ASSERT_TRUE(bitwise_equal(out.view().select(0, f).select(0, h).select(0, w),
                                        x.view().select(0, f).select(0, h / 2).select(0, w / 2)));
      }
}

}  // namespace
}  // namespace weft::test
