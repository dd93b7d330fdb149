#pragma once
// The flags that say where and how work runs, resolved for the commands that share them.
#include "apps/flags.h"
#include "kernels/stream.h"

namespace weft {

// Error(kUsage) unless the layout is one rank, the only one this build runs.
void require_one_rank(const Flags& flags);

// Error(kUsage) naming the build option or the missing device unless --device is cpu.
void require_cpu(const Flags& flags);

// --dtype with auto resolved: bf16 where the CPU multiplies it in hardware, else f32.
DType compute_dtype(const Flags& flags);

}  // namespace weft
