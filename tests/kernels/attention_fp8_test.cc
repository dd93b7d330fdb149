// Attention in f8_e4m3: every table against the definition, the effects of splitting keys and of
// powers of two, NaN and Inf, and the error of eight bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/fp8.h"
#include "tests/kernels/attention_inputs.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

using Problem = AttentionProblem;
using Inputs = AttentionInputs;

AttentionArgs args_of(Inputs& inputs, const Problem& problem) {
  AttentionArgs args = inputs.args(problem);
  args.format = AttentionFormat::kFp8;
  return args;
}

TEST(E4m3, ExponentsKeepTheLargestWithin448) {
  for (float most : {1e-45f, 1e-38f, 1e-30f, 0.4f, 1.0f, 447.0f, 448.0f, 448.1f, 511.0f, 3.4e38f}) {
    const int n = e4m3_exponent(most);
    EXPECT_LE(most * power_of_two(-n), 448) << most;
    if (most > 1e-30f) {
      EXPECT_GT(most * power_of_two(-n), 224) << most;
    }
    EXPECT_EQ(power_of_two(n), std::ldexp(1.0f, n));
  }
  EXPECT_EQ(e4m3_exponent(448), 0);
  EXPECT_EQ(e4m3_exponent(std::nextafter(448.0f, 1e9f)), 1);
  EXPECT_EQ(e4m3_exponent(0), 0);
}

// Returns the values of x after quantization, by the definition: each head has one power-of-two
// scale for the magnitude in `most`; heads that share a key/value head share one.
std::vector<double> quantize_heads(const TensorView& x, const std::vector<double>& most) {
  std::vector<double> quantized = to_f64(x);
  const auto heads = x[1], share = heads / static_cast<int64_t>(most.size());
  for (size_t i = 0; i < quantized.size(); ++i) {
    const int64_t head = static_cast<int64_t>(i) / x[2] % heads / share;
    int n = -200;
    while (std::ldexp(448, n) < most[head]) ++n;
    quantized[i] =
        std::ldexp(from_e4m3(to_e4m3(static_cast<float>(std::ldexp(quantized[i], -n)))), n);
  }
  return quantized;
}

void measure(const TensorView& x, std::vector<double>& most) {
  const std::vector<double> values = to_f64(x);
  const auto heads = x[1], share = heads / static_cast<int64_t>(most.size());
  for (size_t i = 0; i < values.size(); ++i) {
    double& largest = most[static_cast<int64_t>(i) / x[2] % heads / share];
    largest = std::max(largest, std::fabs(values[i]));
  }
}

// Rounds p as attention rounds a probability: to e4m3(256 p).
double eight_bits(double p) { return from_e4m3(to_e4m3(static_cast<float>(256 * p))) / 256.0; }

// Bounds the difference between eight_bits(p) and the same for a p with the relative error
// `relative`. A table that meets a larger logit later rounds relative to the smaller one: stored
// values below 2^-6 of 256 then keep bits that they lose here.
double rounding_doubt(double p, double relative) {
  const double here = eight_bits(p);
  return std::max(eight_bits(p * (1 + relative)) - here, here - eight_bits(p * (1 - relative))) +
         (p * 256 < 0x1p-5 ? 0x1p-10 / 256 : 0);
}

struct QuantizedHeads {
  std::vector<double> q;
  std::vector<std::vector<double>> k, v;  // by segment
};

QuantizedHeads quantize_heads(const AttentionArgs& args) {
  const size_t kv_heads = args.segments.empty() ? 1 : static_cast<size_t>(args.segments[0].k[1]);
  std::vector<double> q(kv_heads), k(kv_heads), v(kv_heads);
  measure(args.q, q);
  for (const KVSegment& segment : args.segments) {
    measure(segment.k, k);
    measure(segment.v, v);
  }
  QuantizedHeads quantized{.q = quantize_heads(args.q, q), .k = {}, .v = {}};
  for (const KVSegment& segment : args.segments) {
    quantized.k.push_back(quantize_heads(segment.k, k));
    quantized.v.push_back(quantize_heads(segment.v, v));
  }
  return quantized;
}

struct Logit {
  double value, error;
  const double* values;
  double power = 0, doubt = 0;  // in eight bits
};

// Returns the logits of query i, head a, for the keys that it sees.
std::vector<Logit> logits_of(const AttentionArgs& args, const QuantizedHeads& quantized, int64_t i,
                             int64_t a, double sum_error) {
  const int64_t heads = args.q[1], e = args.q[2];
  std::vector<Logit> logits;
  for (size_t s = 0; s < args.segments.size(); ++s) {
    const KVSegment& segment = args.segments[s];
    const int64_t kv_heads = segment.k[1], kv = a / (heads / kv_heads);
    for (int64_t j = 0; j < segment.k[0]; ++j) {
      if (args.causal && segment.position + j > args.query_position + i) continue;
      const int64_t at = (j * kv_heads + kv) * e;
      double sum = segment.log_bias, sum_abs = std::fabs(segment.log_bias);
      for (int64_t x = 0; x < e; ++x) {
        const double product =
            quantized.q[(i * heads + a) * e + x] * quantized.k[s][at + x] * args.scale;
        sum += product;
        sum_abs += std::fabs(product);
      }
      logits.push_back(
          {sum, chain_bound(e + 4, sum_abs) + sum_error * sum_abs, quantized.v[s].data() + at});
    }
  }
  return logits;
}

ExpectedAttention expect_attention_fp8(const AttentionArgs& args, double sum_error) {
  const int64_t queries = args.q[0], heads = args.q[1], e = args.q[2];
  const QuantizedHeads quantized = quantize_heads(args);
  ExpectedAttention expected{
      std::vector<Bounded>(queries * heads * e), std::vector<Bounded>(heads * queries), {}};
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t a = 0; a < heads; ++a) {
      std::vector<Logit> logits = logits_of(args, quantized, i, a, sum_error);
      double top = kNoKey, total = 0, logit_error = 0;
      for (const Logit& logit : logits) {
        top = std::max(top, logit.value);
        logit_error = std::max(logit_error, logit.error);
      }
      const double base = std::ceil(top / std::log(2.0)) * std::log(2.0);
      // The relative error of a probability: its logit's error and that of the exponential, whose
      // argument is rounded too.
      const double relative =
          std::expm1(logit_error) + kUnit32 * (8 + 2 * std::fabs(top) + std::fabs(base));
      const double sums = chain_bound(static_cast<int64_t>(logits.size()) + 4, 1) + relative;
      for (Logit& logit : logits) {
        const double p = std::exp(logit.value - base);
        total += p;
        logit.power = eight_bits(p);
        logit.doubt = rounding_doubt(p, relative);
      }
      for (int64_t x = 0; x < e; ++x) {
        double sum = 0, sum_abs = 0, doubt = 0;
        for (const Logit& logit : logits) {
          const double term = logit.power * logit.values[x] / total;
          sum += term;
          sum_abs += std::fabs(term);
          doubt += logit.doubt * std::fabs(logit.values[x]) / total;
        }
        expected.out[(i * heads + a) * e + x] = {sum, doubt + (sums + sum_error) * sum_abs};
      }
      const double lse = logits.empty() ? kNoKey : top + std::log(total) + (base - top);
      expected.lse[a * queries + i] = {
          lse, logits.empty() ? 0 : relative + sums + 4 * kUnit32 * (1 + std::fabs(lse))};
    }
  return expected;
}

const Problem kFp8Problems[] = {
    {.queries = 1, .heads = 1, .kv_heads = 1, .e = 8, .keys = {1}},
    {.queries = 5, .heads = 3, .kv_heads = 3, .e = 16, .keys = {7}},
    {.queries = 33, .heads = 2, .kv_heads = 1, .e = 24, .keys = {20, 1, 44}},
    {.queries = 17, .heads = 4, .kv_heads = 2, .e = 128, .keys = {65, 0, 3}},
    {.queries = 9, .heads = 2, .kv_heads = 2, .e = 17, .keys = {5, 140}},
    // These have two blocks of rows and more tiles than shared memory holds, some of them short.
    {.queries = 140, .heads = 2, .kv_heads = 1, .e = 64, .keys = {300}},
    {.queries = 40, .heads = 1, .kv_heads = 1, .e = 128, .keys = {513, 1, 640}},
    {.queries = 6, .heads = 1, .kv_heads = 1, .e = 32, .keys = {150}, .magnitude = 30},
    {.queries = 150, .heads = 1, .kv_heads = 1, .e = 40, .keys = {150}, .causal = true},
    {.queries = 9,
     .heads = 4,
     .kv_heads = 2,
     .e = 48,
     .keys = {200, 9},
     .causal = true,
     .query_position = 200},
};

TEST(AttentionFp8, EqualsTheDefinition) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport out_report(ops->name + " attention fp8 " + std::string(to_string(dtype)));
      BoundReport lse_report(ops->name + " attention fp8 lse " + std::string(to_string(dtype)));
      for (const Problem& problem : kFp8Problems) {
        SCOPED_TRACE(ops->name + " " + std::string(to_string(dtype)) + " problem " +
                     std::to_string(&problem - kFp8Problems));
        Inputs inputs(problem, dtype);
        inputs.segments.back().log_bias = 0.75f;
        const AttentionArgs args = args_of(inputs, problem);
        const ExpectedAttention expected = expect_attention_fp8(args, sum_error_e4m3(*ops));
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        attention(stream, args);
        EXPECT_TRUE(within(inputs.out, expected.out, &out_report));
        EXPECT_TRUE(within(inputs.lse, expected.lse, &lse_report));
      }
    }
}

TEST(AttentionFp8, StridedViewsAndAnF32State) {
  constexpr int64_t kTokens = 50, kHeads = 2, kE = 24;
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      const Tensor fused = make_normal(dtype, {kTokens, 3, kHeads, kE + 3}, 41);
      const TensorView sizes = fused.view().slice(3, 1, kE);
      Tensor wide(DType::kF32, {kTokens, kHeads + 1, kE});
      const KVSegment segment{.k = sizes.select(1, 1), .v = sizes.select(1, 2)};
      const AttentionArgs args{.q = sizes.select(1, 0),
                               .segments = {&segment, 1},
                               .scale = 0.2f,
                               .format = AttentionFormat::kFp8,
                               .out = wide.view().slice(1, 0, kHeads)};
      attention(stream, args);
      const double sum_error = sum_error_e4m3(*ops);
      EXPECT_TRUE(within(args.out, expect_attention_fp8(args, sum_error).out)) << ops->name;
      for (double value : to_f64(wide.view().slice(1, kHeads, 1))) ASSERT_EQ(value, 0);
    }
}

// Scales are powers of two, so multiplying inputs by powers of two only changes exponents.
TEST(AttentionFp8, PowersOfTwoChangeNoFraction) {
  const Problem problem{.queries = 20, .heads = 2, .kv_heads = 1, .e = 32, .keys = {150}};
  for (const Ops* ops : all_ops()) {
    Inputs inputs(problem, DType::kF32);
    const AttentionArgs args = args_of(inputs, problem);
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    attention(stream, args);
    const std::vector<double> plain = to_f64(inputs.out);
    const auto times = [&](const Tensor& x, int n) {
      for (int64_t i = 0; i < x.view().count(); ++i)
        x.as<float>()[i] = std::ldexp(x.as<float>()[i], n);
    };
    times(inputs.q, 30);
    times(inputs.k[0], -30);
    times(inputs.v[0], 17);
    attention(stream, args);
    const std::vector<double> moved = to_f64(inputs.out);
    for (size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(moved[i], std::ldexp(plain[i], 17)) << i;
  }
}

// Splitting the keys only changes f32 roundings: states over parts of the keys, each with its own
// scales and maxima, merge to the whole.
TEST(AttentionFp8, PartsMergeToTheWhole) {
  const Problem problem{.queries = 30, .heads = 2, .kv_heads = 2, .e = 64, .keys = {400}};
  for (const Ops* ops : all_ops()) {
    Inputs inputs(problem, DType::kBF16);
    Tensor whole(DType::kF32, {30, 2, 64}), sum(DType::kF32, {30, 2, 64}),
        part(DType::kF32, {30, 2, 64}), sum_lse(DType::kF32, {2, 30}),
        part_lse(DType::kF32, {2, 30});
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    AttentionArgs args = args_of(inputs, problem);
    args.out = whole;
    attention(stream, args);
    for (auto [begin, n] : {std::pair<int64_t, int64_t>{0, 130}, {130, 3}, {133, 267}}) {
      const KVSegment segment{.k = inputs.k[0].view().slice(0, begin, n),
                              .v = inputs.v[0].view().slice(0, begin, n)};
      args.segments = {&segment, 1};
      args.out = begin == 0 ? sum : part;
      args.lse = begin == 0 ? sum_lse : part_lse;
      attention(stream, args);
      if (begin > 0) merge_attention(stream, sum, sum_lse, part, part_lse);
    }
    EXPECT_LT(relative_l2(to_f64(sum), to_f64(whole)), kParallelL2 + sum_error_e4m3(*ops))
        << ops->name;
  }
}

TEST(AttentionFp8, ErrsByThreeBitsOfFraction) {
  const Problem problem{.queries = 64, .heads = 2, .kv_heads = 2, .e = 128, .keys = {512}};
  for (const Ops* ops : all_ops()) {
    Inputs inputs(problem, DType::kF32);
    AttentionArgs args = inputs.args(problem);
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    attention(stream, args);
    const std::vector<double> exact = to_f64(inputs.out);
    args.format = AttentionFormat::kFp8;
    attention(stream, args);
    // The error is relative to the value's square, as in LinearFp8. Each of the two operands
    // changes a logit, which has unit variance, by `each`; rounded probabilities and values change
    // a term by as much.
    const double each = 0.125 / std::sqrt(12.0) / std::sqrt(7.0 / 3);
    const double error = relative_l2(to_f64(inputs.out), exact);
    EXPECT_LT(error, each * 2 * 1.25) << ops->name;
    EXPECT_GT(error, each * 2 / 1.25) << ops->name;
  }
}

TEST(AttentionFp8, NonFiniteInputsStayVisible) {
  const Problem problem{.queries = 12, .heads = 4, .kv_heads = 2, .e = 16, .keys = {140}};
  for (const Ops* ops : all_ops())
    for (float bad : {NAN, INFINITY, -INFINITY})
      for (int which : {0, 1, 2}) {
        Inputs inputs(problem, DType::kF32);
        const Tensor& tensor = which == 0 ? inputs.q : which == 1 ? inputs.k[0] : inputs.v[0];
        // The value belongs to the last head, and so to the second key/value head.
        tensor.as<float>()[3 * tensor.view().stride[0] + tensor.view()[1] * 16 - 1] = bad;
        Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
        attention(stream, args_of(inputs, problem));
        const std::vector<double> out = to_f64(inputs.out);
        for (size_t i = 0; i < out.size(); ++i)
          EXPECT_EQ(std::isfinite(out[i]), i / 16 % 4 < 2)
              << ops->name << " " << bad << " " << which;
      }
}

TEST(AttentionFp8, AQueryWithoutKeysGivesZeroWhateverTheValues) {
  const Problem problem{
      .queries = 9, .heads = 1, .kv_heads = 1, .e = 16, .keys = {12}, .causal = true};
  for (const Ops* ops : all_ops()) {
    Inputs inputs(problem, DType::kF32);
    inputs.segments[0].position = 4;  // the first four queries see no key
    inputs.v[0].as<float>()[0] = NAN;
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    attention(stream, args_of(inputs, problem));
    const std::vector<double> out = to_f64(inputs.out);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i / 16 < 4) {
        EXPECT_EQ(out[i], 0) << ops->name << " " << i;
      } else {
        EXPECT_TRUE(std::isnan(out[i])) << ops->name << " " << i;
      }
    }
  }
}

TEST(AttentionFp8, RefusesUnsupportedCalls) {
  const Problem with_bias{
      .queries = 2, .heads = 1, .kv_heads = 1, .e = 8, .keys = {3}, .bias = true};
  const Problem large{.queries = 2, .heads = 1, .kv_heads = 1, .e = 136, .keys = {3}};
  for (const Problem& problem : {with_bias, large}) {
    Inputs inputs(problem, DType::kF32);
    Stream stream = Stream::cpu(1);
    EXPECT_DEATH(attention(stream, args_of(inputs, problem)), "8-bit attention");
  }
}

}  // namespace
}  // namespace weft::test
