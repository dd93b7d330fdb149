#include "kernels/pointwise.h"

#include <limits>

#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

// Expects one f32 operation per output element.
template <class F>
auto each(F&& f) {
  return [f](const auto& in, const auto& v) {
    std::vector<Bounded> out;
    for (size_t i = 0; i < in[0].size(); ++i) out.push_back(f(in, v, i));
    return out;
  };
}

// Expects x / (1 + exp(-a)), where a is known to `relative`: the exponential multiplies an error of
// the argument by |a|; then come an exponential, a sum and a quotient of a few units each. If the
// exponential leaves the range of f32, the result may become zero: hence the smallest normal
// number.
Bounded gated(double x, double a, double relative) {
  const double y = x / (1 + std::exp(-a));
  return {y, std::fabs(y) * (std::fabs(a) * relative + 8 * kUnit32) +
                 std::max(1.0, std::fabs(x)) * std::numeric_limits<float>::min()};
}

Bounded exact_gelu(double x) {
  // Five roundings lead to the argument: x^2, x^3 c, the sum (no cancellation) and the factor.
  return gated(x, 1.5957691216057308 * (x + 0.044715 * x * x * x), 6 * kUnit32);
}

TEST(Pointwise, Add) {
  check_row_op({.name = "add",
                .inputs = 2,
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { add(stream, in[0], in[1], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  return Bounded{in[0][i] + in[1][i], 0};
                })});
}

TEST(Pointwise, GatedAdd) {
  for (bool wide : {false, true})
    check_row_op({.name = wide ? "gated_add of f32" : "gated_add",
                  .inputs = 2,
                  .vectors = 1,
                  .f32_input = wide,
                  .run = [](Stream& stream, const auto& in, const auto& v,
                            const TensorView& out) { gated_add(stream, in[0], in[1], v[0], out); },
                  .expect = each([](const auto& in, const auto& v, size_t i) {
                    const double product = in[1][i] * v[0][i], sum = in[0][i] + product;
                    return Bounded{sum, kUnit32 * (std::fabs(product) + std::fabs(sum))};
                  })});
}

TEST(Pointwise, AddBias) {
  for (bool wide : {false, true})
    check_row_op({.name = wide ? "add_bias to f32" : "add_bias",
                  .vectors = 1,
                  .f32_input = wide,
                  .run = [](Stream& stream, const auto& in, const auto& v,
                            const TensorView& out) { add_bias(stream, in[0], v[0], out); },
                  .expect = each([](const auto& in, const auto& v, size_t i) {
                    const double sum = in[0][i] + v[0][i];
                    return Bounded{sum, kUnit32 * std::fabs(sum)};
                  })});
}

TEST(Pointwise, Silu) {
  check_row_op({.name = "silu",
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { silu(stream, in[0], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  return gated(in[0][i], in[0][i], 0);
                })});
}

TEST(Pointwise, Tanh) {
  check_row_op({.name = "tanh",
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { tanh(stream, in[0], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  const double y = std::tanh(in[0][i]);
                  return Bounded{y, 4 * kUnit32 * std::fabs(y)};
                })});
}

TEST(Pointwise, GeluTanh) {
  check_row_op(
      {.name = "gelu_tanh",
       .run = [](Stream& stream, const auto& in, const auto&,
                 const TensorView& out) { gelu_tanh(stream, in[0], out); },
       .expect = each([](const auto& in, const auto&, size_t i) { return exact_gelu(in[0][i]); })});
}

// Expects x erfc(-u) / 2, u = x / sqrt 2 by one product. An error of the argument is multiplied by
// at most 2 u^2 + 1; then come the complementary error function, of a few units, and two products.
Bounded exact_gelu_erf(double x) {
  const double y = 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return {y, std::fabs(y) * (2 * (x * x + 1) + 8) * kUnit32 +
                 std::max(1.0, std::fabs(x)) * std::numeric_limits<float>::min()};
}

TEST(Pointwise, GeluErf) {
  check_row_op({.name = "gelu_erf",
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { gelu_erf(stream, in[0], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  return exact_gelu_erf(in[0][i]);
                })});
}

TEST(Pointwise, GeluQuick) {
  check_row_op({.name = "gelu_quick",
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { gelu_quick(stream, in[0], out); },
                // The factor and the product round.
                .expect = each([](const auto& in, const auto&, size_t i) {
                  return gated(in[0][i], 1.702 * in[0][i], 2 * kUnit32);
                })});
}

TEST(Pointwise, GeluTanhMul) {
  check_row_op({.name = "gelu_tanh_mul",
                .inputs = 2,
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { gelu_tanh_mul(stream, in[0], in[1], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  const Bounded gate = exact_gelu(in[0][i]);
                  const double y = gate.value * in[1][i];
                  return Bounded{y, std::fabs(in[1][i]) * gate.bound + kUnit32 * std::fabs(y)};
                })});
}

TEST(Pointwise, SiluMul) {
  check_row_op({.name = "silu_mul",
                .inputs = 2,
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { silu_mul(stream, in[0], in[1], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  const Bounded gate = gated(in[0][i], in[0][i], 0);
                  const double y = gate.value * in[1][i];
                  return Bounded{y, std::fabs(in[1][i]) * gate.bound + kUnit32 * std::fabs(y)};
                })});
}

TEST(Pointwise, SigmoidMul) {
  check_row_op({.name = "sigmoid_mul",
                .inputs = 2,
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { sigmoid_mul(stream, in[0], in[1], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  return gated(in[1][i], in[0][i], 0);
                })});
}

TEST(Pointwise, ActivationsOverTheirRange) {
  constexpr int64_t kCount = 40001;
  Tensor x(DType::kF32, {1, kCount}), out(DType::kF32, {1, kCount});
  std::vector<Bounded> exact_silu, exact, exact_erf, exact_quick;
  for (int64_t i = 0; i < kCount; ++i) {
    const float value = static_cast<float>((i - kCount / 2) * (110.0 / (kCount / 2)));
    x.as<float>()[i] = value;
    exact_silu.push_back(gated(value, value, 0));
    exact.push_back(exact_gelu(value));
    exact_erf.push_back(exact_gelu_erf(value));
    exact_quick.push_back(gated(value, 1.702 * double{value}, 2 * kUnit32));
  }
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    Stream stream = Stream::cpu(1, Determinism::kFixed, table.ops);
    BoundReport silu_report(table.name + " silu over [-110, 110]");
    BoundReport gelu_report(table.name + " gelu_tanh over [-110, 110]");
    silu(stream, x, out);
    EXPECT_TRUE(within(out, exact_silu, &silu_report)) << table.name;
    gelu_tanh(stream, x, out);
    EXPECT_TRUE(within(out, exact, &gelu_report)) << table.name;
    gelu_erf(stream, x, out);
    EXPECT_TRUE(within(out, exact_erf)) << table.name;
    gelu_quick(stream, x, out);
    EXPECT_TRUE(within(out, exact_quick)) << table.name;
  }
}

TEST(Pointwise, ActivationsOfExtremes) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Ops* ops : all_ops()) {
    SCOPED_TRACE(ops->name);
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Tensor x(DType::kF32, {1, 5}), out(DType::kF32, {1, 5});
    const float values[5] = {kMax, -kMax, 1e30f, -1e30f, 0.0f};
    for (int i = 0; i < 5; ++i) x.as<float>()[i] = values[i];
    const std::vector<Bounded> expected{{kMax}, {0}, {values[2]}, {0}, {0}};
    silu(stream, x, out);
    EXPECT_TRUE(within(out, expected));
    gelu_tanh(stream, x, out);
    EXPECT_TRUE(within(out, expected));
    x.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    x.as<float>()[1] = kInfinity;
    silu(stream, x, out);
    EXPECT_TRUE(std::isnan(out.as<float>()[0]));
    EXPECT_EQ(out.as<float>()[1], kInfinity);
    gelu_tanh(stream, x, out);
    EXPECT_TRUE(std::isnan(out.as<float>()[0]));
    EXPECT_EQ(out.as<float>()[1], kInfinity);
  }
}

TEST(Pointwise, Axpby) {
  constexpr float kA = 1.7f, kB = -0.3f;
  check_row_op({.name = "axpby",
                .inputs = 2,
                .dtypes = {DType::kF32},
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { axpby(stream, kA, in[0], kB, in[1], out); },
                .expect = each([](const auto& in, const auto&, size_t i) {
                  const double first = double{kA} * in[0][i], second = double{kB} * in[1][i];
                  return Bounded{first + second, kUnit32 * (std::fabs(first) + std::fabs(second) +
                                                            std::fabs(first + second))};
                })});
}

TEST(Pointwise, SumsGiveTheSameBitsInEveryTable) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor x = make_normal(dtype, {9, 77}, 16), y = make_normal(dtype, {9, 77}, 17);
    Tensor vector = make_normal(DType::kF32, {77}, 18);
    const auto run = [&](const Ops& ops) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, &ops);
      Tensor out(dtype, {4, 9, 77});
      add(stream, x, y, out.view().select(0, 0));
      gated_add(stream, x, y, vector, out.view().select(0, 1));
      add_bias(stream, x, vector, out.view().select(0, 2));
      if (dtype == DType::kF32) axpby(stream, 0.7f, x, 1.1f, y, out.view().select(0, 3));
      return out;
    };
    const Tensor expected = run(reference_ops());
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      EXPECT_TRUE(bitwise_equal(run(*table.ops), expected)) << table.name;
    }
  }
}

TEST(Pointwise, CombineSumsInF64InTheOrderOfItsTerms) {
  const std::vector<double> factors{1.7, -0.3, 1e-9, 12345.678};
  for (const Ops* ops : all_ops())
    for (const int64_t n : {0, 1, 77, 40000})
      for (size_t count = 1; count <= kMaxTerms; ++count) {
        SCOPED_TRACE(ops->name + " n " + std::to_string(n) + " terms " + std::to_string(count));
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        std::vector<Tensor> x;
        std::vector<Term> terms;
        for (size_t k = 0; k < count; ++k)
          x.push_back(make_normal(DType::kF32, {n}, 40 + static_cast<int>(k)));
        for (size_t k = 0; k < count; ++k) terms.push_back({factors[k], x[k]});
        std::vector<float> expected;
        for (int64_t i = 0; i < n; ++i) {
          double sum = factors[0] * x[0].as<float>()[i];
          for (size_t k = 1; k < count; ++k) sum += factors[k] * x[k].as<float>()[i];
          expected.push_back(static_cast<float>(sum));
        }
        combine(stream, terms, x[count - 1]);  // out is the last term
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), x[count - 1].as<float>()));
      }
}

TEST(Pointwise, ClampHoldsValuesBetweenBothAndKeepsNaN) {
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
    Tensor x = make_normal(DType::kF32, {3, 1001}, 50, 2);
    store(x, 7, std::numeric_limits<double>::quiet_NaN());
    store(x, 8, -std::numeric_limits<double>::infinity());
    Tensor out(DType::kF32, {3, 1001});
    clamp(stream, x, -1, 0.5, out);
    for (int64_t i = 0; i < x.count(); ++i) {
      const float value = x.as<float>()[i], got = out.as<float>()[i];
      if (std::isnan(value))
        EXPECT_TRUE(std::isnan(got)) << i;
      else
        EXPECT_EQ(got, value < -1 ? -1 : value > 0.5f ? 0.5f : value) << ops->name << " " << i;
    }
    clamp(stream, x, -1, 0.5, x);
    EXPECT_EQ(std::memcmp(x.as<float>(), out.as<float>(), x.view().bytes()), 0);
  }
}

TEST(Pointwise, FirstNonFinite) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (int64_t n : {0, 1, 7, 64, 1000, 70001}) {
        SCOPED_TRACE(ops->name + " n " + std::to_string(n));
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        Tensor x = make_normal(dtype, {n}, 9, 1e30);
        EXPECT_EQ(first_non_finite(stream, x), -1);
        if (n == 0) continue;
        for (int64_t at : {n - 1, n / 2, int64_t{0}}) {
          store(x, at,
                at % 2 ? std::numeric_limits<double>::quiet_NaN()
                       : -std::numeric_limits<double>::infinity());
          EXPECT_EQ(first_non_finite(stream, x), at);
        }
      }
}

TEST(Pointwise, NoteNonFiniteKeepsTheFirstOfAll) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(ops->name);
      Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
      Tensor slot(DType::kI64, {1}), x = make_normal(dtype, {5003}, 9, 1e30);
      int64_t& noted = *slot.as<int64_t>();
      noted = -1;
      note_non_finite(stream, x, slot);
      EXPECT_EQ(noted, -1);
      store(x, 4000, std::numeric_limits<double>::infinity());
      store(x, 5002, std::numeric_limits<double>::quiet_NaN());
      note_non_finite(stream, x, slot);
      EXPECT_EQ(noted, 4000);
      note_non_finite(stream, x.view().slice(0, 0, 4000), slot);
      EXPECT_EQ(noted, 4000) << "a finite tensor";
      note_non_finite(stream, x.view().slice(0, 4001, 1002), slot);
      EXPECT_EQ(noted, 1001) << "an earlier one";
      note_non_finite(stream, x, slot);
      EXPECT_EQ(noted, 1001) << "a later one";
    }
}

}  // namespace
}  // namespace weft::test
