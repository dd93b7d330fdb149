// Reference norms: f64 statistics, f32 arithmetic, plain loops.
#include "kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

// Calls row(x row, out row, index) for every row.
template <class Row>
void for_rows(Stream& stream, const TensorView& x, const TensorView& out, Row&& row) {
  visit_dtype(x.dtype, [&]<class In>(In) {
    visit_dtype(out.dtype, [&]<class Out>(Out) {
      const int64_t x_stride = x.row_stride(), out_stride = out.row_stride();
      parallel_for(stream, x.rows(), row_grain(x[-1]), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          row(static_cast<const In*>(x.as<In>()) + r * x_stride, out.as<Out>() + r * out_stride, r);
      });
    });
  });
}

// out = (x - mean) / sqrt(var + eps) * multiply(i) + offset(i).
template <class Multiply, class Offset>
void normalise(Stream& stream, const TensorView& x, float eps, const TensorView& out,
               Multiply&& multiply, Offset&& offset) {
  const int64_t d = x[-1];
  for_rows(stream, x, out, [&]<class In, class T>(const In* in, T* to, int64_t) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < d; ++i) sum += to_float(in[i]);
    const double mean = sum / d;
    for (int64_t i = 0; i < d; ++i) squares += (to_float(in[i]) - mean) * (to_float(in[i]) - mean);
    const double scale = 1 / std::sqrt(squares / d + eps);
    for (int64_t i = 0; i < d; ++i)
      to[i] = from_float<T>(
          static_cast<float>((to_float(in[i]) - mean) * scale * multiply(i) + offset(i)));
  });
}

void layer_norm(Stream& stream, const TensorView& x, const TensorView& weight,
                const TensorView& bias, float eps, const TensorView& out) {
  const float* w = weight ? weight.as<float>() : nullptr;
  const float* b = bias ? bias.as<float>() : nullptr;
  normalise(
      stream, x, eps, out, [w](int64_t i) { return w ? double{w[i]} : 1.0; },
      [b](int64_t i) { return b ? double{b[i]} : 0.0; });
}

void modulated_layer_norm(Stream& stream, const TensorView& x, const TensorView& scale,
                          const TensorView& shift, float eps, const TensorView& out) {
  const float* s = scale.as<float>();
  const float* b = shift.as<float>();
  normalise(
      stream, x, eps, out, [s](int64_t i) { return 1.0 + s[i]; },
      [b](int64_t i) { return double{b[i]}; });
}

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float eps,
              const TensorView& out) {
  const float* w = weight.as<float>();
  const int64_t d = x[-1];
  for_rows(stream, x, out, [&]<class In, class T>(const In* in, T* to, int64_t) {
    const double scale = 1 / std::sqrt(dot(in, in, d) / d + eps);
    for (int64_t i = 0; i < d; ++i)
      to[i] = from_float<T>(static_cast<float>(to_float(in[i]) * scale * w[i]));
  });
}

void sum_squares(Stream& stream, const TensorView& x, const TensorView& sums) {
  float* sum = sums.as<float>();
  for_rows(stream, x, x, [&]<class In, class T>(const In* in, T*, int64_t r) {
    sum[r] = static_cast<float>(dot(in, in, x[-1]));
  });
}

void rms_scale(Stream& stream, const TensorView& x, const TensorView& sums, int64_t width,
               const TensorView& weight, float eps, const TensorView& out) {
  const float* sum = sums.as<float>();
  const float* w = weight.as<float>();
  for_rows(stream, x, out, [&]<class In, class T>(const In* in, T* to, int64_t r) {
    const double scale = 1 / std::sqrt(double{sum[r]} / width + eps);
    for (int64_t i = 0; i < x[-1]; ++i)
      to[i] = from_float<T>(static_cast<float>(to_float(in[i]) * scale * w[i]));
  });
}

void channel_rms_norm(Stream& stream, const TensorView& x, const TensorView& gamma,
                      Activation activation, const TensorView& out) {
  const float* g = gamma.as<float>();
  const int64_t c = x[-1];
  for_rows(stream, x, out, [&]<class In, class T>(const In* in, T* to, int64_t) {
    const double scale =
        std::sqrt(static_cast<double>(c)) / std::max(std::sqrt(dot(in, in, c)), 1e-12);
    for (int64_t i = 0; i < c; ++i) {
      const double y = to_float(in[i]) * scale * g[i];
      to[i] =
          from_float<T>(static_cast<float>(activation == Activation::kSilu ? silu_exact(y) : y));
    }
  });
}

}  // namespace

void fill_norm_reference(Ops& ops) {
  ops.norm = {.layer_norm = layer_norm,
              .modulated_layer_norm = modulated_layer_norm,
              .rms_norm = rms_norm,
              .sum_squares = sum_squares,
              .rms_scale = rms_scale,
              .channel_rms_norm = channel_rms_norm};
}

}  // namespace weft::cpu
