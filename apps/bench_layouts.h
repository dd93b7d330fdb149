#pragma once
// weft bench layouts: one denoising step of Wan 1.3B's shapes under every layout of two ranks.
#include "apps/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_layouts(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
