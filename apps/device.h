#pragma once
// The flags that say where and how work runs, resolved for the commands that share them.
#include "apps/flags.h"
#include "kernels/stream.h"

namespace weft {

// --ranks: how many threads of this process are ranks.
int ranks_of(const Flags& flags);

// --threads of each rank: given, or the machine's shared among the ranks; 0 = all of them.
int threads_per_rank(const Flags& flags, int ranks);

// Error(kUsage) naming the build option or the missing device unless --device is cpu.
void require_cpu(const Flags& flags);

// --dtype with auto resolved: bf16 where the CPU multiplies it in hardware, else f32.
DType compute_dtype(const Flags& flags);

}  // namespace weft
