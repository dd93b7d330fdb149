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
  if (!x.rows_collapse() || !out.rows_collapse()) {
    for (int64_t i = 0; i < x[0]; ++i)
      cpu::rms_norm(stream, x.select(0, i), weight, eps, out.select(0, i));
    return;
  }
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

// Calls group(g, first channel, channels) for every group.
template <class Group>
void for_groups(Stream& stream, const TensorView& x, int64_t groups, Group&& group) {
  const int64_t channels = x[1] / groups;
  parallel_for(stream, groups, row_grain(x[0] * channels), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) group(g, g * channels, channels);
  });
}

// Returns the f64 sum of term(value) over the channels' values of all pixels.
template <class Term>
double sum_channels(const TensorView& x, int64_t first, int64_t channels, Term&& term) {
  double sum = 0;
  visit_dtype(x.dtype, [&]<class In>(In) {
    for (int64_t r = 0; r < x[0]; ++r)
      for (int64_t c = first; c < first + channels; ++c)
        sum += term(static_cast<double>(to_float(x.as<In>()[r * x.row_stride() + c])));
  });
  return sum;
}

void group_sums(Stream& stream, const TensorView& x, const TensorView& sums) {
  const int64_t groups = sums[0] - 1;
  for_groups(stream, x, groups, [&](int64_t g, int64_t first, int64_t channels) {
    sums.as<float>()[g] =
        static_cast<float>(sum_channels(x, first, channels, [](double value) { return value; }));
  });
  sums.as<float>()[groups] = static_cast<float>(x[0]);
}

void group_squares(Stream& stream, const TensorView& x, const TensorView& sums,
                   const TensorView& squares) {
  const double pixels = sums.as<float>()[sums[0] - 1];
  for_groups(stream, x, squares[0], [&](int64_t g, int64_t first, int64_t channels) {
    const double mean = sums.as<float>()[g] / (pixels * static_cast<double>(channels));
    squares.as<float>()[g] = static_cast<float>(sum_channels(
        x, first, channels, [mean](double value) { return (value - mean) * (value - mean); }));
  });
}

void group_norm(Stream& stream, const TensorView& x, const TensorView& sums,
                const TensorView& squares, const TensorView& weight, const TensorView& bias,
                float eps, Activation activation, const TensorView& out) {
  const int64_t groups = squares[0], channels = x[1] / groups;
  const double count = double{sums.as<float>()[groups]} * static_cast<double>(channels);
  for_rows(stream, x, out, [&]<class In, class T>(const In* in, T* to, int64_t) {
    for (int64_t c = 0; c < x[1]; ++c) {
      const int64_t g = c / channels;
      const double scale = 1 / std::sqrt(squares.as<float>()[g] / count + eps);
      const double y =
          (to_float(in[c]) - sums.as<float>()[g] / count) * scale * weight.as<float>()[c] +
          bias.as<float>()[c];
      to[c] =
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
              .channel_rms_norm = channel_rms_norm,
              .group_sums = group_sums,
              .group_squares = group_squares,
              .group_norm = group_norm};
}

}  // namespace weft::cpu
