#pragma once
// Decides what may stay in memory beside a job.
#include "engine/job/options.h"
#include "engine/memory/memory_plan.h"

namespace weft {

// Returns whether a job of this plan fits in memory beside `bytes` of tensors that this process
// holds on the same device. `options` are those of the ranks, with the memory that was free at
// their start as the limit. They choose the fastest residency that fits in it. The plan may be a
// smaller one, as the weights that stay have made what is free less.
bool fits_beside(const MemoryPlan& plan, const GeneratorOptions& options, uint64_t bytes);

}  // namespace weft
