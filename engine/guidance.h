#pragma once
// Classifier-free guidance (Ho & Salimans 2022): v = v_u + s (v_c - v_u).
#include "kernels/stream.h"

namespace weft {

// Forwards a step takes: 2 with guidance, 1 where the scale switches it off.
constexpr int guidance_branches(double scale) { return scale > 1.0 ? 2 : 1; }

// conditional <- unconditional + scale (conditional - unconditional); f32, one shape.
void guide(Stream& stream, double scale, const TensorView& unconditional,
           const TensorView& conditional);

}  // namespace weft
