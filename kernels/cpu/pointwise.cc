// Reference pointwise ops; the activations are evaluated in f64 and rounded once.
#include "kernels/pointwise.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

double silu_exact(double x) { return x / (1 + std::exp(-x)); }

double gelu_tanh_exact(double x) {
  // 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), which keeps its relative accuracy far left of zero.
  constexpr double kTwoRootTwoOverPi = 1.5957691216057307117597842397375;
  return x / (1 + std::exp(-kTwoRootTwoOverPi * (x + 0.044715 * x * x * x)));
}

namespace {

// out[r][i] = f(x[r][i], y[r][i], i); y's dtype is free.
template <class F>
void map2(Stream& stream, const TensorView& x, const TensorView& y, const TensorView& out, F&& f) {
  const int64_t d = out[-1];
  visit_dtype(x.dtype, [&](auto x_tag) {
    visit_dtype(y.dtype, [&](auto y_tag) {
      visit_dtype(out.dtype, [&](auto out_tag) {
        using Out = decltype(out_tag);
        const auto* x_data = x.as<decltype(x_tag)>();
        const auto* y_data = y.as<decltype(y_tag)>();
        Out* out_data = out.as<Out>();
        parallel_for(stream, out.rows(), row_grain(d), [&](int64_t begin, int64_t end) {
          for (int64_t r = begin; r < end; ++r) {
            const auto* a = x_data + r * x.row_stride();
            const auto* b = y_data + r * y.row_stride();
            Out* to = out_data + r * out.row_stride();
            for (int64_t i = 0; i < d; ++i)
              to[i] = from_float<Out>(f(to_float(a[i]), to_float(b[i]), i));
          }
        });
      });
    });
  });
}

void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  map2(stream, a, b, out, [](float x, float y, int64_t) { return x + y; });
}

void gated_add(Stream& stream, const TensorView& x, const TensorView& y, const TensorView& gate,
               const TensorView& out) {
  const float* g = gate.as<float>();
  map2(stream, x, y, out, [g](float a, float b, int64_t i) { return a + b * g[i]; });
}

void add_bias(Stream& stream, const TensorView& x, const TensorView& bias, const TensorView& out) {
  const float* b = bias.as<float>();
  map2(stream, x, x, out, [b](float a, float, int64_t i) { return a + b[i]; });
}

void silu(Stream& stream, const TensorView& x, const TensorView& out) {
  map2(stream, x, x, out,
       [](float a, float, int64_t) { return static_cast<float>(silu_exact(a)); });
}

void tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  map2(stream, x, x, out,
       [](float a, float, int64_t) { return static_cast<float>(std::tanh(double{a})); });
}

void gelu_tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  map2(stream, x, x, out,
       [](float a, float, int64_t) { return static_cast<float>(gelu_tanh_exact(a)); });
}

void gelu_erf(Stream& stream, const TensorView& x, const TensorView& out) {
  // 1 + erf(u) = erfc(-u), which keeps its relative accuracy far left of zero.
  constexpr double kRootHalf = 0.70710678118654752440084436210485;
  map2(stream, x, x, out, [](float a, float, int64_t) {
    return static_cast<float>(0.5 * a * std::erfc(-kRootHalf * a));
  });
}

void gelu_quick(Stream& stream, const TensorView& x, const TensorView& out) {
  map2(stream, x, x, out,
       [](float a, float, int64_t) { return static_cast<float>(a / (1 + std::exp(-1.702 * a))); });
}

void gelu_tanh_mul(Stream& stream, const TensorView& a, const TensorView& b,
                   const TensorView& out) {
  map2(stream, a, b, out,
       [](float x, float y, int64_t) { return static_cast<float>(gelu_tanh_exact(x) * y); });
}

void silu_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  map2(stream, a, b, out,
       [](float x, float y, int64_t) { return static_cast<float>(silu_exact(x) * y); });
}

void sigmoid_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  map2(stream, a, b, out, [](float x, float y, int64_t) {
    return static_cast<float>(y / (1 + std::exp(-double{x})));
  });
}

void axpby(Stream& stream, float a, const TensorView& x, float b, const TensorView& y,
           const TensorView& out) {
  map2(stream, x, y, out, [a, b](float p, float q, int64_t) { return a * p + b * q; });
}

// Works value by value, so that out may be any of the terms.
void combine(Stream& stream, std::span<const Term> terms, const TensorView& out) {
  constexpr int64_t kGrain = 1 << 14;
  float* to = out.as<float>();
  parallel_for(stream, out.count(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = terms[0].factor * static_cast<const float*>(terms[0].x.data)[i];
      for (size_t k = 1; k < terms.size(); ++k)
        sum += terms[k].factor * static_cast<const float*>(terms[k].x.data)[i];
      to[i] = static_cast<float>(sum);
    }
  });
}

void clamp(Stream& stream, const TensorView& x, float low, float high, const TensorView& out) {
  constexpr int64_t kGrain = 1 << 16;
  const float* from = x.as<float>();
  float* to = out.as<float>();
  parallel_for(stream, out.count(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = std::clamp(from[i], low, high);
  });
}

int64_t first_non_finite(Stream& stream, const TensorView& x) {
  const int64_t n = x.count();
  return visit_dtype(x.dtype, [&](auto tag) -> int64_t {
    const auto* data = x.as<decltype(tag)>();
    for (int64_t i = 0; i < n; ++i)
      if (!std::isfinite(to_float(data[i]))) return i;
    return -1;
  });
}

void note_non_finite(Stream& stream, const TensorView& x, const TensorView& slot) {
  const int64_t first = stream.ops().pointwise.first_non_finite(stream, x);
  int64_t& noted = *slot.as<int64_t>();
  if (first >= 0 && (noted < 0 || first < noted)) noted = first;
}

}  // namespace

void fill_pointwise_reference(Ops& ops) {
  ops.pointwise = {.add = add,
                   .gated_add = gated_add,
                   .add_bias = add_bias,
                   .silu = silu,
                   .tanh = tanh,
                   .gelu_tanh = gelu_tanh,
                   .gelu_erf = gelu_erf,
                   .gelu_quick = gelu_quick,
                   .gelu_tanh_mul = gelu_tanh_mul,
                   .silu_mul = silu_mul,
                   .sigmoid_mul = sigmoid_mul,
                   .axpby = axpby,
                   .combine = combine,
                   .clamp = clamp,
                   .first_non_finite = first_non_finite,
                   .note_non_finite = note_non_finite};
}

}  // namespace weft::cpu
