#pragma once
// The part of a job between its encoded prompts and its file, where the method is the queue: blocks
// are denoised, and decoded and written as they are done.
//
// A checkpoint holds, with r bytes per latent frame, Q = min(T, B) blocks of P frames and h tensors
// of the solver's history: ((1 + h) (Q P + C) + P + VaeTraits::history) r. For it the ranks of the
// last stage send the root all but the last frames, which the decoder sends.
#include <chrono>
#include <span>

#include "engine/generation/generator.h"
#include "engine/generation/stages.h"
#include "engine/parts/rank.h"
#include "engine/sampling/sampler.h"
#include "parallel/schedule/block_queue.h"

namespace weft {

struct QueueRun {
  const Rank& rank;
  const JobFacts& facts;
  std::span<const TensorView> prompts;  // Request::prompt and those of the schedule, [length, d]
  TensorView negative;
  int first_turn = 0;  // the turns before are done; RunOptions::resume is of this turn
  Checkpoint about{};  // describe_job(), with any total
};

// Describes a job's queue to plan_queue.
QueuePlanConfig queue_plan(const JobFacts& facts, const Components& parts,
                           const RankPlacement& placement);
// The plans of all ranks for it.
JobSchedule queue_schedule(const JobFacts& facts, const Components& parts,
                           const RankPlacement& placement);

// Throws Error(kUsage) that says why where a checkpoint cannot be resumed by the job with this
// record.
void check_queue_resumable(const Checkpoint& checkpoint, const std::string& record,
                           const JobFacts& facts, const VaeTraits& vae);

// Every rank of the replica calls it. Fills in what `result` says of the frames. Throws
// Error(kStopped) where the root was asked to stop, but for an endless video with frames: it ends.
void run_queue(QueueRun run, FrameSink* sink, const RunOptions& options, StageClock& clock,
               RunResult& result, std::chrono::steady_clock::time_point started);

}  // namespace weft
