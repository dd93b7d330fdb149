#pragma once
// weft bench stream: how fast and how evenly a stream comes, and what it would do on more devices.
#include "apps/command_line/flags.h"
#include "kernels/tensor.h"

namespace weft {

// Streams --seconds of a voice with --model, or the pocket avatar: as fast as it can, or paced with
// --live. With --simulate it forecasts streams on 1 to 5 devices instead, like this machine and
// like those of Live Avatar (2025, arXiv 2512.04677), beside its published numbers.
int bench_stream(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
