#pragma once
// weft bench dit, weft bench attention: one forward of a transformer with random weights, and its
// attention alone, beside what this machine's oneDNN reaches in the same run.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_dit(const Flags& flags, DType dtype, int repeat);
int bench_attention(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
