#include "engine/sampling/guidance.h"

#include <algorithm>

#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

// It keeps a row of zeros from becoming NaN, and is far below the square of any velocity.
constexpr float kSmallest = 1e-30f;

TensorView filled(Stream& stream, Arena& arena, std::initializer_list<int64_t> shape, float value) {
  const TensorView out = arena.alloc(DType::kF32, shape);
  make_on_host(stream, out,
               [&](const TensorView& to) { std::fill_n(to.as<float>(), to.count(), value); });
  return out;
}

// Scales every row of x [n, D] to the norm of a row whose sum of squares is in sums [n]. The two
// halves of the RMS norm do it: rms_scale multiplies a row by rsqrt(sums / width).
void scale_to_norms(Stream& stream, Arena& arena, const TensorView& sums, const TensorView& x) {
  const int64_t n = x[0], d = x[1];
  const auto width = static_cast<float>(d);
  const TensorView inverse = filled(stream, arena, {n, 1}, width);  // becomes D^2 / sums
  const TensorView weight = filled(stream, arena, {d}, 1), one = weight.slice(0, 0, 1);
  for (int half = 0; half < 2; ++half) rms_scale(stream, inverse, sums, d, one, kSmallest, inverse);
  rms_norm(stream, x, weight, kSmallest, x);
  rms_scale(stream, x, inverse.reshape({n}), d, weight, 0, x);
}

}  // namespace

void guide(Stream& stream, Arena& arena, const ModelFamily& family, double scale,
           const TensorView& negative, const TensorView& positive) {
  const float sign = family.velocity_sign, g = static_cast<float>(scale);
  if (guidance_branches(scale) == 2) {
    const Arena::Scope scope(arena);
    const bool from_positive = family.guidance == GuidanceForm::kFromPositive;
    const bool rescaled = family.guidance == GuidanceForm::kRescaled;
    TensorView sums;
    if (rescaled) {
      sums = arena.alloc(DType::kF32, {positive[0]});
      sum_squares(stream, positive, sums);
    }
    const float p = from_positive ? 1.0f + g : g, n = from_positive ? -g : 1.0f - g;
    axpby(stream, sign * p, positive, sign * n, negative, positive);
    if (rescaled) scale_to_norms(stream, arena, sums, positive);
  } else if (sign != 1) {
    axpby(stream, sign, positive, 0, positive, positive);
  }
}

}  // namespace weft
