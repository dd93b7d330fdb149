#pragma once
// weft bench layouts: one denoising step of Wan's shapes, or --model's, under every layout of two
// ranks, each of which may have a device or share one.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_layouts(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
