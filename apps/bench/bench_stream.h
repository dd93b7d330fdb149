#pragma once
// weft bench stream: how fast and how evenly a stream comes.
#include "apps/command_line/flags.h"
#include "kernels/tensor.h"

namespace weft {

// Streams --seconds of sound with --model, or the pocket avatar: as fast as it can, or paced with
// --live.
int bench_stream(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
