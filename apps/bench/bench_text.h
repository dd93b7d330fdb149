#pragma once
// weft bench text: one encoding by a text encoder of UMT5-XXL's extents with random weights, beside
// what this machine's oneDNN reaches in the same run.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_text(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
