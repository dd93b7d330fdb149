// GEMMs of f8_e4m3: the scalar's rounding, every table against the definition, NaN and Inf, and the
// error of eight bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/fp8.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

TEST(E4m3, HoldsItsValues) {
  // Sign, exponent and fraction must follow the format's definition.
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const float value = from_e4m3(static_cast<uint8_t>(bits));
    if ((bits & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(to_e4m3(value) & 127, 127);
      continue;
    }
    const double magnitude =
        exponent ? std::ldexp(1 + fraction / 8.0, exponent - 7) : std::ldexp(fraction / 8.0, -6);
    EXPECT_EQ(value, bits & 128 ? -magnitude : magnitude) << bits;
    EXPECT_EQ(to_e4m3(value), bits);
    EXPECT_EQ(to_float(to_bf16(value)), value) << "bf16 holds it";
  }
  EXPECT_EQ(from_e4m3(0x7e), kLargestE4m3);
}

TEST(E4m3, RoundsToNearestTiesToEven) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = from_e4m3(static_cast<uint8_t>(bits)),
                high = from_e4m3(static_cast<uint8_t>(bits + 1)), middle = (low + high) / 2;
    const int even = bits % 2 ? bits + 1 : bits;
    EXPECT_EQ(to_e4m3(middle), even) << bits;
    EXPECT_EQ(to_e4m3(-middle), even | 128) << bits;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(to_e4m3(1e-30f), 0);
  for (float large : {449.0f, 1e9f, INFINITY}) EXPECT_EQ(to_e4m3(-large), 0xfe);
}

TEST(E4m3, UnitsOfRowsStayFinite) {
  for (float most : {0.0f, 1e-45f, 1e-38f, 1e-36f, 1.0f, 3e38f}) {
    const float unit = e4m3_unit(most);
    EXPECT_TRUE(std::isfinite(unit)) << most;
    EXPECT_LE(most * unit, 448 * (1 + 0x1p-23f)) << most;
    if (most > 1e-35f) {
      EXPECT_EQ(to_e4m3(most * unit), 0x7e) << most;
    }
  }
}

// The rows of `x` in 8 bits with their scales, by the definition.
struct Fp8Rows {
  std::vector<double> values;  // as f64, rows dense
  std::vector<float> scales;
};
Fp8Rows quantize_fp8(const TensorView& x, WeightFormat format) {
  Fp8Rows quantized;
  const std::vector<double> all = to_f64(x);
  if (format == WeightFormat::kFp8Tensor) {
    double most = 0;
    for (double value : all) most = std::max(most, std::fabs(value));
    int n = -200;
    while (std::ldexp(448, n) < most) ++n;
    for (double value : all)
      quantized.values.push_back(from_e4m3(to_e4m3(static_cast<float>(std::ldexp(value, -n)))));
    quantized.scales.assign(x[0], std::ldexp(1.0f, n));
    return quantized;
  }
  for (int64_t r = 0; r < x[0]; ++r) {
    float most = 0;
    for (int64_t i = 0; i < x[1]; ++i)
      most = std::max(most, static_cast<float>(std::fabs(all[r * x[1] + i])));
    for (int64_t i = 0; i < x[1]; ++i)
      quantized.values.push_back(
          from_e4m3(to_e4m3(static_cast<float>(all[r * x[1] + i]) * e4m3_unit(most))));
    quantized.scales.push_back(most / 448);
  }
  return quantized;
}

struct LibraryErrors {
  double sum;  // sum_error_e4m3
  EpilogueErrors epilogue;
};

std::vector<Bounded> expect_linear_fp8(const TensorView& x, const TensorView& weight,
                                       const TensorView& bias, LinearActivation activation,
                                       WeightFormat format, const LibraryErrors& errors) {
  const Fp8Rows a = quantize_fp8(x, format), w = quantize_fp8(weight, format);
  const Tensor wide = bias ? converted(converted(bias, x.dtype), DType::kF32) : Tensor();
  const int64_t in = weight[1];
  std::vector<Bounded> out;
  for (int64_t r = 0; r < x[0]; ++r)
    for (int64_t o = 0; o < weight[0]; ++o) {
      const double scale = static_cast<double>(a.scales[r]) * w.scales[o];
      const double added = wide ? wide.as<float>()[o] : 0.0;
      double sum = 0, sum_abs = 0;
      for (int64_t i = 0; i < in; ++i) {
        const double product = a.values[r * in + i] * w.values[o * in + i] * scale;
        sum += product;
        sum_abs += std::fabs(product);
      }
      sum += added;
      // Two scales and the bias round once each after the chain of sums.
      const double bound = chain_bound(in + 3, sum_abs + std::fabs(added)) + errors.sum * sum_abs +
                           errors.epilogue.product * std::fabs(sum - added);
      out.push_back(activated({sum, bound}, activation, errors.epilogue.tanh));
    }
  return out;
}

const LinearShape kFp8Shapes[] = {{1, 1, 1},    {3, 17, 5},    {16, 64, 33}, {17, 64, 33},
                                  {40, 96, 48}, {21, 200, 70}, {4, 520, 19}};

constexpr WeightFormat kFp8Formats[] = {WeightFormat::kFp8, WeightFormat::kFp8Tensor};

struct FormatCase {
  const Ops* ops;
  WeightFormat format;
  DType dtype;
};
std::vector<FormatCase> format_cases() {
  std::vector<FormatCase> all;
  for (const Ops* ops : all_ops())
    for (WeightFormat format : kFp8Formats)
      for (DType dtype : {DType::kF32, DType::kBF16}) all.push_back({ops, format, dtype});
  return all;
}

TEST(LinearFp8, EqualsTheDefinition) {
  for (const auto& [ops, format, dtype] : format_cases()) {
    BoundReport report(ops->name +
                       (format == WeightFormat::kFp8 ? " linear fp8 " : " fp8-tensor ") +
                       std::string(to_string(dtype)));
    for (const LinearShape& shape : kFp8Shapes)
      for (DType out_dtype : {DType::kF32, dtype})
        for (bool with_bias : {false, true})
          for (LinearActivation activation :
               {LinearActivation::kNone, LinearActivation::kSilu, LinearActivation::kGeluTanh}) {
            SCOPED_TRACE(ops->name + " rows " + std::to_string(shape.rows));
            const Tensor x = make_normal(dtype, {shape.rows, shape.in}, 1);
            const Tensor weight = make_normal(DType::kBF16, {shape.out, shape.in}, 2, 0.1);
            const Tensor bias = make_normal(DType::kF32, {shape.out}, 3);
            const TensorView b = with_bias ? bias.view() : TensorView();
            Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
            const PackedLinear packed = pack_linear(stream, weight, b, dtype, format);
            EXPECT_EQ(packed.format(), format);
            EXPECT_GE(packed.bytes(), static_cast<size_t>(shape.out * (shape.in + 4)));
            Tensor out(out_dtype, {shape.rows, shape.out + 3});
            const TensorView part = out.view().slice(1, 1, shape.out);
            linear(stream, x, packed, activation, part);
            const bool may_fuse = format == WeightFormat::kFp8Tensor;
            const LibraryErrors errors{
                sum_error_e4m3(*ops),
                may_fuse ? epilogue_errors(*ops, shape.rows, with_bias, out_dtype, activation)
                         : EpilogueErrors{}};
            EXPECT_TRUE(
                within(part, expect_linear_fp8(x, weight, b, activation, format, errors), &report));
          }
  }
}

TEST(LinearFp8, ErrsByThreeBitsOfFraction) {
  const Tensor x = make_normal(DType::kF32, {64, 512}, 4),
               weight = make_normal(DType::kF32, {96, 512}, 5);
  Stream stream = Stream::cpu(1, Determinism::kFast, &reference_ops());
  Tensor exact(DType::kF32, {64, 96}), out(DType::kF32, {64, 96});
  linear(stream, x, pack_linear(stream, weight, {}, DType::kF32), LinearActivation::kNone, exact);
  // A step is 2^-3 of the power of two below a value, and errors are uniform over half a step
  // either way: relative to the value's square that is on average 2^-3 / sqrt(12) / 1.53 (for
  // values uniform over a binade the mean of squares is 7/3).
  const double each = 0.125 / std::sqrt(12.0) / std::sqrt(7.0 / 3);
  for (WeightFormat format : kFp8Formats) {
    linear(stream, x, pack_linear(stream, weight, {}, DType::kF32, format), LinearActivation::kNone,
           out);
    const double error = relative_l2(to_f64(out), to_f64(exact));
    EXPECT_LT(error, each * std::sqrt(2.0) * 1.25);
    EXPECT_GT(error, each * std::sqrt(2.0) / 1.25);
  }
}

// All rows share one power-of-two scale: the choice of rows that share a call only changes f32
// roundings and values far below the largest.
TEST(LinearFp8, OtherRowsOnlyAffectRounding) {
  const Tensor x = make_normal(DType::kF32, {40, 96}, 8),
               weight = make_normal(DType::kF32, {48, 96}, 9);
  for (int64_t i = 0; i < 96; ++i) x.as<float>()[i] *= 30;  // the first row has the largest
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    const PackedLinear packed =
        pack_linear(stream, weight, {}, DType::kF32, WeightFormat::kFp8Tensor);
    Tensor together(DType::kF32, {40, 48}), apart(DType::kF32, {40, 48});
    linear(stream, x, packed, LinearActivation::kNone, together);
    for (auto [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 19}, {20, 20}})
      linear(stream, x.view().slice(0, begin, count), packed, LinearActivation::kNone,
             apart.view().slice(0, begin, count));
    EXPECT_LT(relative_l2(to_f64(apart), to_f64(together)), kParallelL2 + sum_error_e4m3(*ops))
        << ops->name;
  }
}

TEST(LinearFp8, NonFiniteInputsStayVisible) {
  const Tensor weight = make_normal(DType::kF32, {20, 40}, 6);
  for (const auto& [ops, format, dtype] : format_cases())
    for (int64_t rows : {4, 24})
      for (float bad : {NAN, INFINITY, -INFINITY})
        for (int64_t at : {int64_t{0}, int64_t{39}}) {
          const Tensor x = make_normal(DType::kF32, {rows, 40}, 7);
          x.as<float>()[2 * 40 + at] = bad;
          std::fill_n(x.as<float>() + 40, 40, 0.0f);
          Stream stream = Stream::cpu(1, Determinism::kFast, ops);
          Tensor out(DType::kF32, {rows, 20});
          linear(stream, x, pack_linear(stream, weight, {}, DType::kF32, format),
                 LinearActivation::kNone, out);
          const bool all = format == WeightFormat::kFp8Tensor;  // all rows share the NaN scale
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t o = 0; o < 20; ++o)
              EXPECT_EQ(std::isfinite(out.as<float>()[row * 20 + o]), !all && row != 2)
                  << ops->name << " " << bad;
          for (int64_t o = 0; o < 20 && !all; ++o) EXPECT_EQ(out.as<float>()[20 + o], 0);
        }
}

}  // namespace
}  // namespace weft::test
