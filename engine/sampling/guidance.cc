#include "engine/sampling/guidance.h"

#include "kernels/pointwise.h"

namespace weft {

void guide(Stream& stream, const ModelFamily& family, double scale, const TensorView& negative,
           const TensorView& positive) {
  const float sign = family.velocity_sign, g = static_cast<float>(scale);
  if (guidance_branches(scale) == 2) {
    const bool from_positive = family.guidance == GuidanceForm::kFromPositive;
    const float p = from_positive ? 1.0f + g : g, n = from_positive ? -g : 1.0f - g;
    axpby(stream, sign * p, positive, sign * n, negative, positive);
  } else if (sign != 1) {
    axpby(stream, sign, positive, 0, positive, positive);
  }
}

}  // namespace weft
