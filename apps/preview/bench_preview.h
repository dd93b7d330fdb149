#pragma once
// weft bench preview: how well a linear map of the latent shows what a model folder's VAE decodes.
// It makes the preview.json that --preview proj needs, from clips that it encodes and decodes, or
// with --repeat N from N clips that the model draws.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_preview(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
