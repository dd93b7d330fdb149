#pragma once
// The part of a job between its encoded prompts and its file, where the method is the queue: blocks
// are denoised, and decoded and written as they are done.
#include <chrono>
#include <span>

#include "engine/generation/components.h"
#include "engine/generation/generator.h"
#include "engine/generation/stages.h"
#include "engine/sampling/sampler.h"
#include "parallel/schedule/block_queue.h"

namespace weft {

struct QueueRun {
  Stream& stream;
  Arena& arena;
  Components& parts;
  RankPlacement& placement;
  const Request& request;  // resolved
  const Sampler& sampler;
  std::span<const TensorView> prompts;  // Request::prompt and those of the schedule, [length, d]
  TensorView negative;
};

// Describes a request's queue to plan_queue.
QueuePlanConfig queue_plan(const Request& request, const Sampler& sampler, const Components& parts,
                           const RankPlacement& placement);
// The plans of all ranks for it.
JobSchedule queue_schedule(const Request& request, const Sampler& sampler, const Components& parts,
                           const RankPlacement& placement);

// Every rank of the replica calls it. Fills in what `result` says of the frames. Throws
// Error(kStopped) where the root was asked to stop.
void run_queue(const QueueRun& run, FrameSink* sink, const RunOptions& options, StageClock& clock,
               RunResult& result, std::chrono::steady_clock::time_point started);

}  // namespace weft
