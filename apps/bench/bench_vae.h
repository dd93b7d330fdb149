#pragma once
// weft bench vae: the decoder of Wan's VAE with random weights, latent frame by latent frame,
// beside the time its GEMMs would take at oneDNN's rate.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_vae(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
