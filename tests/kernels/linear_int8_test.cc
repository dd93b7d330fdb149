// 8-bit integer GEMMs: every table matches the reference for any number of rows and threads; NaN
// and Inf stay visible; the error against f32 is that of 8 bits.
#include "kernels/cpu/linear_int8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

const LinearShape kInt8Shapes[] = {{1, 1, 1},
                                   {3, 17, 5},
                                   {130, 64, 33},
                                   {300, 200, 192},
                                   {65, 1536, 70},
                                   // The threads share these few rows of weights by columns.
                                   {1, 515, 523},
                                   {4, 512, 520},
                                   {16, 1024, 300}};

Tensor run_int8(const Ops* ops, const LinearShape& shape, DType dtype, DType out_dtype, int threads,
                LinearActivation activation, const Tensor& x, const Tensor& weight,
                const Tensor& bias) {
  Stream stream = Stream::cpu(threads, Determinism::kFast, ops);
  const PackedLinear packed = pack_linear(stream, weight, bias, dtype, WeightFormat::kInt8);
  EXPECT_EQ(packed.format(), WeightFormat::kInt8);
  Tensor out(out_dtype, {shape.rows, shape.out});
  linear(stream, x, packed, activation, out);
  return out;
}

TEST(LinearInt8, EveryTableMatchesTheReference) {
  for (const LinearShape& shape : kInt8Shapes)
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (LinearActivation activation : {LinearActivation::kNone, LinearActivation::kGeluTanh}) {
        const Tensor x = make_normal(dtype, {shape.rows, shape.in}, 1);
        const Tensor weight = make_normal(DType::kBF16, {shape.out, shape.in}, 2, 0.1);
        const Tensor bias = make_normal(DType::kF32, {shape.out}, 3);
        const Tensor expected =
            run_int8(&reference_ops(), shape, dtype, DType::kF32, 1, activation, x, weight, bias);
        for (const Ops* ops : all_ops())
          for (int threads : {1, 3}) {
            const Tensor out =
                run_int8(ops, shape, dtype, DType::kF32, threads, activation, x, weight, bias);
            // The sums are exact; only the activation's series differs.
            for (int64_t i = 0; i < out.count(); ++i)
              ASSERT_NEAR(out.as<float>()[i], expected.as<float>()[i],
                          16 * kUnit32 * (1 + std::fabs(expected.as<float>()[i])))
                  << ops->name << " " << shape.rows << "x" << shape.in << "x" << shape.out;
            if (activation == LinearActivation::kNone) {
              EXPECT_TRUE(bitwise_equal(out, expected)) << ops->name;
            }
          }
      }
}

TEST(LinearInt8, ErrsByEightBits) {
  const LinearShape shape{64, 512, 96};
  const Tensor x = make_normal(DType::kF32, {shape.rows, shape.in}, 4);
  const Tensor weight = make_normal(DType::kF32, {shape.out, shape.in}, 5);
  Stream stream = Stream::cpu(1, Determinism::kFast, &reference_ops());
  Tensor exact(DType::kF32, {shape.rows, shape.out});
  linear(stream, x, pack_linear(stream, weight, {}, DType::kF32), LinearActivation::kNone, exact);
  const Tensor out = run_int8(&cpu_ops(), shape, DType::kF32, DType::kF32, 1,
                              LinearActivation::kNone, x, weight, {});
  // Each operand is off by up to half a step of its largest magnitude / 127, uniformly: a normal
  // row of 512 reaches about 3.2, so each operand adds 3.2 / 127 / sqrt(12) = 0.0073 relative.
  const double error = relative_l2(to_f64(out), to_f64(exact));
  EXPECT_LT(error, 0.0073 * std::sqrt(2.0) * 1.3);
  EXPECT_GT(error, 0.0073 * std::sqrt(2.0) / 1.3);
}

TEST(LinearInt8, NonFiniteInputsStayVisible) {
  const LinearShape shape{4, 40, 20};
  const Tensor weight = make_normal(DType::kF32, {shape.out, shape.in}, 6);
  for (const Ops* ops : all_ops())
    for (float bad : {NAN, INFINITY, -INFINITY})
      for (int64_t at : {int64_t{0}, int64_t{39}}) {
        const Tensor x = make_normal(DType::kF32, {shape.rows, shape.in}, 7);
        x.as<float>()[2 * shape.in + at] = bad;
        const Tensor out = run_int8(ops, shape, DType::kF32, DType::kF32, 1,
                                    LinearActivation::kNone, x, weight, {});
        for (int64_t row = 0; row < shape.rows; ++row)
          for (int64_t o = 0; o < shape.out; ++o)
            EXPECT_EQ(std::isfinite(out.as<float>()[row * shape.out + o]), row != 2)
                << ops->name << " " << bad;
      }
}

TEST(LinearInt8, ZerosAndStridedRows) {
  const LinearShape shape{7, 24, 10};
  const Tensor weight = make_normal(DType::kF32, {shape.out, shape.in}, 8);
  const Tensor bias = make_normal(DType::kF32, {shape.out}, 9);
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(2, Determinism::kFast, ops);
    const PackedLinear packed = pack_linear(stream, weight, bias, DType::kF32, WeightFormat::kInt8);
    const Tensor wide = make_normal(DType::kF32, {shape.rows, 2 * shape.in}, 10);
    const TensorView x = wide.view().slice(1, 5, shape.in);
    fill_zero(stream, x.slice(0, 3, 1));
    Tensor dense(DType::kF32, {shape.rows, shape.in}), expected(DType::kF32, {7, 10});
    Tensor out(DType::kF32, {7, 15});
    copy(stream, x, dense);
    linear(stream, dense, packed, LinearActivation::kNone, expected);
    const TensorView part = out.view().slice(1, 2, shape.out);
    linear(stream, x, packed, LinearActivation::kNone, part);
    EXPECT_EQ(to_f64(part), to_f64(expected)) << ops->name;
    for (int64_t o = 0; o < shape.out; ++o)
      EXPECT_EQ(expected.as<float>()[3 * shape.out + o], bias.as<float>()[o]);
  }
}

}  // namespace
}  // namespace weft::test
