#pragma once
// weft bench load: loading and packing weights, compared with read(2) of the same files.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

// Loads the parts of --model, or a transformer of Wan 1.3B's widths with random weights and
// --blocks blocks in the temporary folder. Each of `repeat` rounds first reads every byte of the
// files with the job's threads into fresh memory, then loads; the result is the ratio of the
// medians, and on a device also the rate compared with a copy from pinned memory.
int bench_load(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
