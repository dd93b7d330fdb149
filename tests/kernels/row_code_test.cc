// Rows coded in 8 bits: every table against the definition, to the bit; the bound of their error;
// what is exact; NaN and Inf.
#include "kernels/row_code.h"

#include "kernels/int8_row.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

struct Coded {
  Tensor code, out;
};

Coded code_in(const Ops& ops, const TensorView& x, const TensorView& base,
              RowCode kind = RowCode::kE4m3) {
  Stream stream = Stream::cpu(2, Determinism::kFixed, &ops);
  Coded coded{Tensor(DType::kI8, {x[0], x[1] + 1}), Tensor(x.dtype, {x[0], x[1]})};
  encode_rows(stream, x, base, coded.code, kind);
  decode_rows(stream, coded.code, base, coded.out, kind);
  return coded;
}

// The largest number of a code, and a number rounded to it, by definition.
double largest_of(RowCode kind) { return kind == RowCode::kInt8 ? 127 : 448; }
std::pair<int8_t, double> rounded_to(RowCode kind, double number) {
  if (kind == RowCode::kInt8) {
    const double whole = std::nearbyint(number);
    return {static_cast<int8_t>(whole), whole};
  }
  const uint8_t byte = to_e4m3(static_cast<float>(number));
  return {static_cast<int8_t>(byte), from_e4m3(byte)};
}

TEST(RowCode, EveryTableHasTheBitsOfTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const RowCase& shape : row_cases())
      for (const auto& [residual, kind] : {std::pair{false, RowCode::kE4m3},
                                           {true, RowCode::kE4m3},
                                           {false, RowCode::kInt8},
                                           {true, RowCode::kInt8}}) {
        Random random(static_cast<uint32_t>(shape.d));
        Rows x(dtype, shape.rows, shape.d, shape.layout),
            base(dtype, shape.rows, shape.d, shape.layout);
        x.fill(random, shape.magnitude, shape.offset);
        base.fill(random, shape.magnitude, shape.offset);
        const TensorView before = residual ? base.view() : TensorView{};
        Coded expected{Tensor(DType::kI8, {shape.rows, shape.d + 1}),
                       Tensor(dtype, {shape.rows, shape.d})};
        for (int64_t row = 0; row < shape.rows; ++row) {
          const std::vector<double> values = to_f64(x.view().select(0, row)),
                                    bases = to_f64(base.view().select(0, row));
          std::vector<float> differences;
          double most = 0;
          for (size_t i = 0; i < values.size(); ++i) {
            differences.push_back(static_cast<float>(values[i] - (residual ? bases[i] : 0)));
            most = std::max(most, std::fabs(double{differences[i]}));
          }
          int n = most > 0 ? -118 : 0;
          while (std::ldexp(largest_of(kind), n) < most) ++n;
          int8_t* code = static_cast<int8_t*>(expected.code.view().data) + row * (shape.d + 1);
          code[shape.d] = static_cast<int8_t>(n);
          for (size_t i = 0; i < values.size(); ++i) {
            const auto [byte, number] = rounded_to(kind, std::ldexp(differences[i], -n));
            code[i] = byte;
            store(expected.out.view(), row * shape.d + static_cast<int64_t>(i),
                  (residual ? bases[i] : 0) + std::ldexp(number, n));
          }
        }
        for (const Ops* ops : all_ops()) {
          const Coded coded = code_in(*ops, x.view(), before, kind);
          EXPECT_TRUE(bitwise_equal(coded.code, expected.code)) << ops->name << " d " << shape.d;
          EXPECT_TRUE(bitwise_equal(coded.out, expected.out)) << ops->name << " d " << shape.d;
          if (!residual) continue;
          const Tensor in_place(dtype, {shape.rows, shape.d});
          Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
          copy(stream, base.view(), in_place);
          decode_rows(stream, coded.code, in_place, in_place, kind);
          EXPECT_TRUE(bitwise_equal(in_place, expected.out)) << ops->name << " in place";
        }
      }
}

// Law L-Q2.
TEST(RowCode, TheErrorIsASixteenthOfAValueAtMost) {
  for (const double magnitude : {1e-12, 1.0, 1e12}) {
    const Tensor x = make_normal(DType::kF32, {20, 300}, 3, magnitude);
    const Coded coded = code_in(reference_ops(), x, {});
    double largest = 0;
    for (int64_t row = 0; row < 20; ++row) {
      const float *values = x.as<float>() + row * 300, *out = coded.out.as<float>() + row * 300;
      double most = 0;
      for (int i = 0; i < 300; ++i) most = std::max(most, std::fabs(double{values[i]}));
      for (int i = 0; i < 300; ++i) {
        const double error = std::fabs(double{values[i]} - out[i]), own = std::fabs(values[i]);
        EXPECT_LE(error, std::max(own / 16, most / (1 << 17)));
        largest = std::max(largest, error / own);
      }
    }
    EXPECT_GT(largest, 1.0 / 18);  // the bound is reached
  }
}

// Law 18: half a unit, which is between 1/128 and 1/64 of the row's largest value.
TEST(RowCode, TheErrorOfWholeNumbersIsHalfTheirUnit) {
  for (const double magnitude : {1e-12, 1.0, 1e12}) {
    const Tensor x = make_normal(DType::kF32, {20, 300}, 3, magnitude);
    const Coded coded = code_in(reference_ops(), x, {}, RowCode::kInt8);
    for (int64_t row = 0; row < 20; ++row) {
      const float *values = x.as<float>() + row * 300, *out = coded.out.as<float>() + row * 300;
      const auto* code = static_cast<const int8_t*>(coded.code.view().data) + row * 301;
      const double unit = std::ldexp(1, code[300]);
      double most = 0, largest = 0;
      for (int i = 0; i < 300; ++i) most = std::max(most, std::fabs(double{values[i]}));
      EXPECT_LE(most, 127 * unit);
      EXPECT_GT(most, 63.5 * unit);
      for (int i = 0; i < 300; ++i)
        largest = std::max(largest, std::fabs(double{values[i]} - out[i]));
      EXPECT_LE(largest, unit / 2);
      EXPECT_GT(largest, 0.45 * unit) << "the bound is reached";
    }
  }
}

TEST(RowCode, WhatFitsIsExact) {
  Tensor x(DType::kF32, {3, 33}), base(DType::kF32, {3, 33});
  for (int64_t i = 0; i < x.count(); ++i) {
    x.as<float>()[i] = std::ldexp(static_cast<float>(i % 33 - 16), static_cast<int>(i / 33) * 20);
    base.as<float>()[i] = static_cast<float>(i % 5);
  }
  for (const Ops* ops : all_ops()) {
    for (const RowCode kind : {RowCode::kE4m3, RowCode::kInt8}) {
      EXPECT_TRUE(bitwise_equal(code_in(*ops, x, {}, kind).out, x)) << ops->name;
      EXPECT_TRUE(bitwise_equal(code_in(*ops, base, base, kind).out, base)) << ops->name;
    }
  }
}

TEST(RowCode, ARowWithNaNOrInfBecomesNaN) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    const Tensor x = make_normal(DType::kF32, {3, 40}, 5);
    x.as<float>()[57] = bad;
    for (const Ops* ops : all_ops())
      for (const RowCode kind : {RowCode::kE4m3, RowCode::kInt8}) {
        const Coded coded = code_in(*ops, x, {}, kind);
        for (int64_t i = 0; i < x.count(); ++i)
          EXPECT_EQ(std::isnan(coded.out.as<float>()[i]), i / 40 == 1) << ops->name << " " << i;
      }
  }
}

}  // namespace
}  // namespace weft::test
