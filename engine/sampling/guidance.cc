#include "engine/sampling/guidance.h"

#include "kernels/pointwise.h"

namespace weft {

void guide(Stream& stream, double scale, const TensorView& unconditional,
           const TensorView& conditional) {
  const float s = static_cast<float>(scale);
  axpby(stream, s, conditional, 1.0f - s, unconditional, conditional);
}

}  // namespace weft
