#pragma once
// weft bench long: the methods of long video side by side, on one rank and on several: speed,
// traffic, memory, and how well the video keeps what its prompt asks for.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

// Draws `repeat` clips with every method on 1 to --ranks ranks, which are threads. The operands
// behind the bench's name are cases: METHOD, or METHOD@AXIS for ranks that share this axis
// (METHOD@LAYOUT: for --ranks ranks).
int bench_long(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
