#pragma once
// Classifier-free guidance (Ho & Salimans 2022): two velocities become the one that a sampler steps
// along.
#include "kernels/arena.h"
#include "kernels/stream.h"
#include "models/registry.h"

namespace weft {

// The number of forwards per step: 2 with guidance, 1 where the scale switches guidance off.
constexpr int guidance_branches(double scale) { return scale > 1.0 ? 2 : 1; }

// Writes the velocity of a step to `positive` [tokens, columns], by the family's form of guidance
// and its sign. Both are f32 of one shape; `negative` is not read where the scale switches guidance
// off.
void guide(Stream& stream, Arena& arena, const ModelFamily& family, double scale,
           const TensorView& negative, const TensorView& positive);

}  // namespace weft
