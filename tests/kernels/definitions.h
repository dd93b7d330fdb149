#pragma once
// Linear, convolution and attention by their definitions in f64, with a bound of the f32 rounding
// error for every output.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/implementation.h"
#include "kernels/cuda/gemv.h"
#include "kernels/ops.h"
#include "tests/support/compare.h"

namespace weft::test {

// Returns a dense copy in another dtype.
inline Tensor converted(const TensorView& x, DType dtype) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  Tensor out(dtype, x.shape());
  copy(stream, x, out);
  return out;
}

// The library's epilogue computes GELU with the instruction tanh.approx, whose largest error PTX
// documents as 2^-11 of the value in f32 and 2^-10.987 in f16. Our kernels and the CPU's do not.
inline const double kTanhApprox = std::exp2(-10.987);

// The errors that a library's epilogue adds to a linear (LinearActivation).
struct EpilogueErrors {
  double product = 0;  // x w^T is rounded, too, before a bias or GELU; relative
  double tanh = 0;
};
// The errors where a device leaves bias and activation to the library, else none.
inline EpilogueErrors epilogue_errors(const Ops& ops, int64_t rows, bool bias, DType out,
                                      LinearActivation activation) {
  if (ops.name != "cuda" || out != DType::kBF16 || rows <= cuda::kGemvRows ||
      activation == LinearActivation::kSilu)
    return {};
  const bool gelu = activation == LinearActivation::kGeluTanh;
  return {bias || gelu ? kUnitBf16 : 0, kTanhApprox};
}

// A convolution of one tap is a linear.
inline EpilogueErrors pointwise_errors(const Ops& ops, int64_t pixels, int64_t taps, bool bias,
                                       DType dtype) {
  return taps == 1 ? epilogue_errors(ops, pixels, bias, dtype, LinearActivation::kNone)
                   : EpilogueErrors{};
}

// Expects act(sum), computed in f32. GELU is sum / 2 * (1 + tanh).
inline Bounded activated(const Bounded& sum, LinearActivation activation, double tanh_error = 0) {
  const double x = sum.value;
  if (activation == LinearActivation::kNone) return sum;
  const bool gelu = activation == LinearActivation::kGeluTanh;
  const double argument = gelu ? 1.5957691216057308 * (x + 0.044715 * x * x * x) : x;
  const double value = x / (1 + std::exp(-argument));
  // |silu'| and |gelu'| stay below 1.13; on top come six roundings of the argument, an exponential,
  // a sum and a quotient.
  return {value, 1.13 * sum.bound + kUnit32 * std::fabs(value) * (6 * std::fabs(argument) + 8) +
                     (gelu ? std::fabs(x) / 2 * tanh_error : 0)};
}

// Expects act(x w^T + bias) of weights already rounded to the compute dtype, that of x.
inline std::vector<Bounded> expect_linear(const TensorView& x, const TensorView& weight,
                                          const TensorView& bias, LinearActivation activation,
                                          const EpilogueErrors& errors = {}) {
  const std::vector<double> a = to_f64(x), w = to_f64(weight);
  const std::vector<double> b =
      bias ? to_f64(converted(bias, x.dtype)) : std::vector<double>(weight[0], 0.0);
  const int64_t in = weight[1], columns = weight[0];
  std::vector<Bounded> out;
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t o = 0; o < columns; ++o) {
      double sum = b[o], sum_abs = std::fabs(b[o]);
      for (int64_t k = 0; k < in; ++k) {
        sum += a[r * in + k] * w[o * in + k];
        sum_abs += std::fabs(a[r * in + k] * w[o * in + k]);
      }
      const double bound = chain_bound(in + 1, sum_abs) + errors.product * std::fabs(sum - b[o]);
      out.push_back(activated({sum, bound}, activation, errors.tanh));
    }
  return out;
}

// By definition a convolution is a sum over taps and input channels, with zeros outside x.
inline std::vector<Bounded> expect_conv(const TensorView& x, const TensorView& weight,
                                        const TensorView& bias, const ConvArgs& args,
                                        const std::array<int64_t, 4>& shape,
                                        const EpilogueErrors& errors = {}) {
  const std::vector<double> in = to_f64(x), w = to_f64(weight);
  const std::vector<double> b =
      bias ? to_f64(converted(bias, x.dtype)) : std::vector<double>(weight[0], 0.0);
  std::vector<Bounded> out;
  for (int64_t f = 0; f < shape[0]; ++f)
    for (int64_t h = 0; h < shape[1]; ++h)
      for (int64_t column = 0; column < shape[2]; ++column)
        for (int64_t o = 0; o < shape[3]; ++o) {
          double sum = b[o], sum_abs = std::fabs(b[o]);
          int64_t tap = 0;
          for (int64_t kt = 0; kt < weight[2]; ++kt)
            for (int64_t kh = 0; kh < weight[3]; ++kh)
              for (int64_t kw = 0; kw < weight[4]; ++kw, ++tap) {
                const int64_t at[3] = {f * args.stride[0] + kt - args.pad_front,
                                       h * args.stride[1] + kh - args.pad_h[0],
                                       column * args.stride[2] + kw - args.pad_w[0]};
                if (at[0] < 0 || at[0] >= x[0] || at[1] < 0 || at[1] >= x[1] || at[2] < 0 ||
                    at[2] >= x[2])
                  continue;
                for (int64_t c = 0; c < x[3]; ++c) {
                  const double term = in[((at[0] * x[1] + at[1]) * x[2] + at[2]) * x[3] + c] *
                                      w[(o * x[3] + c) * weight[2] * weight[3] * weight[4] + tap];
                  sum += term;
                  sum_abs += std::fabs(term);
                }
              }
          out.push_back(
              {sum, chain_bound(tap * x[3] + 1, sum_abs) + errors.product * std::fabs(sum - b[o])});
        }
  return out;
}

struct ExpectedAttention {
  std::vector<Bounded> out, lse;  // [N, A, E], [A, N]
  std::vector<double> terms;      // [N, A, E] sum over keys of |probability x value|
};

// Softmax by its definition. A logit is a sum of E products and two terms. Its error changes every
// probability by the same factor, up to twice the largest error; the sums over keys add their own
// error.
constexpr double kNoKey = -std::numeric_limits<double>::infinity();

inline ExpectedAttention expect_attention(const AttentionArgs& args) {
  const int64_t queries = args.q[0], heads = args.q[1], e = args.q[2];
  const std::vector<double> q = to_f64(args.q);
  const std::vector<double> bias = args.bias ? to_f64(args.bias) : std::vector<double>();
  std::vector<std::vector<double>> k, v;
  int64_t keys = 0;
  for (const KVSegment& segment : args.segments) {
    k.push_back(to_f64(segment.k));
    v.push_back(to_f64(segment.v));
    keys += segment.k[0];
  }
  ExpectedAttention expected{std::vector<Bounded>(q.size()), std::vector<Bounded>(heads * queries),
                             std::vector<double>(q.size())};
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t a = 0; a < heads; ++a) {
      std::vector<double> logits;
      std::vector<const double*> values;
      double logit_error = 0, top = kNoKey, total = 0;
      for (size_t s = 0; s < k.size(); ++s) {
        const KVSegment& segment = args.segments[s];
        const int64_t kv_heads = segment.k[1], kv = a / (heads / kv_heads);
        for (int64_t j = 0; j < segment.k[0]; ++j) {
          const int64_t key = static_cast<int64_t>(logits.size());
          double sum = 0, sum_abs = 0;
          for (int64_t x = 0; x < e; ++x) {
            const double product = q[(i * heads + a) * e + x] * k[s][(j * kv_heads + kv) * e + x];
            sum += product * args.scale;
            sum_abs += std::fabs(product * args.scale);
          }
          const double extra = bias.empty() ? 0 : bias[(a * queries + i) * keys + key];
          sum += extra + segment.log_bias;
          sum_abs += std::fabs(extra) + std::fabs(segment.log_bias);
          if (args.causal && segment.position + j > args.query_position + i) sum = kNoKey;
          if (sum != kNoKey) logit_error = std::max(logit_error, chain_bound(e + 3, sum_abs));
          logits.push_back(sum);
          values.push_back(v[s].data() + (j * kv_heads + kv) * e);
          top = std::max(top, sum);
        }
      }
      for (double logit : logits) total += logit == kNoKey ? 0 : std::exp(logit - top);
      const double relative = 2 * logit_error + chain_bound(2 * keys + 12, 1);
      for (int64_t x = 0; x < e; ++x) {
        double sum = 0, sum_abs = 0;
        for (size_t j = 0; j < logits.size(); ++j) {
          if (logits[j] == kNoKey) continue;
          const double term = std::exp(logits[j] - top) / total * values[j][x];
          sum += term;
          sum_abs += std::fabs(term);
        }
        expected.out[(i * heads + a) * e + x] = {sum, relative * sum_abs};
        expected.terms[(i * heads + a) * e + x] = sum_abs;
      }
      const double lse = total > 0 ? top + std::log(total) : kNoKey;
      expected.lse[a * queries + i] = {
          lse, total > 0 ? logit_error + relative + 4 * kUnit32 * (1 + std::fabs(lse)) : 0};
    }
  return expected;
}

// Adds to each output's bound the error of rounding the probabilities to bf16: the unit roundoff
// times the sum of the absolute terms.
inline void allow_rounded_probabilities(ExpectedAttention& expected) {
  for (size_t i = 0; i < expected.out.size(); ++i)
    expected.out[i].bound += kUnitBf16 * expected.terms[i];
}

// True if the table rounds the probabilities to bf16.
inline bool rounds_probabilities(const Ops& ops, const AttentionArgs& args) {
  if (args.q.dtype != DType::kBF16) return false;
  return ops.name == "cuda" ||
         (cpu_has_bf16() && &ops == &cpu_ops() && cpu::takes_gemm_attention(args));
}

inline ExpectedAttention expect_attention(const AttentionArgs& args, const Ops& ops) {
  ExpectedAttention expected = expect_attention(args);
  if (rounds_probabilities(ops, args)) allow_rounded_probabilities(expected);
  return expected;
}

// In an instruction of 32 e4m3 products the tensor cores cut every term, toward zero, to 13 bits of
// fraction at the exponent of the largest (DeepSeek-V3, 2024, 3.3.2). The losses have both signs
// and together stay below 2^-13 of the sum of magnitudes. Four instructions pass before f32 takes
// over.
constexpr double kSumErrorE4m3 = 4 * 0x1p-13;
inline double sum_error_e4m3(const Ops& ops) { return ops.name == "cuda" ? kSumErrorE4m3 : 0; }

// Compares the result of merge_attention on (a, b) with the reference's. CPU tables must have the
// same bits. On a device exp and log are known to 2 ulp: a weight is then off by 3 units (the
// host's by one), so a quotient of two weights by 6, with 4 roundings on either side.
inline void expect_merged(const Ops& ops, const TensorView& out, const TensorView& lse,
                          const TensorView& expected, const TensorView& expected_lse,
                          const TensorView& a, const TensorView& b) {
  if (ops.name != "cuda") {
    EXPECT_TRUE(bitwise_equal(out, expected));
    EXPECT_TRUE(bitwise_equal(lse, expected_lse));
    return;
  }
  const std::vector<double> exact = to_f64(expected), exact_lse = to_f64(expected_lse);
  const std::vector<double> left = to_f64(a), right = to_f64(b);
  std::vector<Bounded> bounded, bounded_lse;
  for (size_t i = 0; i < exact.size(); ++i)
    bounded.push_back({exact[i], 14 * kUnit32 * std::max(std::fabs(left[i]), std::fabs(right[i]))});
  for (const double value : exact_lse)
    bounded_lse.push_back({value, kUnit32 * (8 + 2 * std::fabs(value))});
  EXPECT_TRUE(within(out, bounded));
  EXPECT_TRUE(within(lse, bounded_lse));
}

}  // namespace weft::test
