#pragma once
// Classifier-free guidance (Ho & Salimans 2022): v = v_u + s (v_c - v_u).
#include "kernels/stream.h"

namespace weft {

// The number of forwards per step: 2 with guidance, 1 where the scale switches guidance off.
constexpr int guidance_branches(double scale) { return scale > 1.0 ? 2 : 1; }

// Writes unconditional + scale (conditional - unconditional) to `conditional`; f32, equal shapes.
void guide(Stream& stream, double scale, const TensorView& unconditional,
           const TensorView& conditional);

}  // namespace weft
