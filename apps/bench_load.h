#pragma once
// weft bench load: loading with packing against read(2) of the same files.
#include "apps/flags.h"
#include "kernels/dtype.h"

namespace weft {

// Of --model's parts, or of a transformer of Wan 1.3B's widths with random weights and --blocks
// blocks in the temporary folder. Each of `repeat` rounds first reads every byte of the files with
// the job's threads into fresh memory, then loads; the medians' ratio is what counts; on a device
// also the rate beside that of pinned memory.
int bench_load(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
