#pragma once
// Decides where a job starts: at the beginning, or at the step of a checkpoint.
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/checkpoint.h"
#include "engine/job/job_facts.h"
#include "engine/parts/rank.h"

namespace weft {

struct PipelineTap;

// The step at which a job starts, and its state at that step.
struct Start {
  int step = 0;
  Tensor latent{};  // of the rank's own frames; empty at step 0
  std::vector<Tensor> history{};
};

// The noise that the job's chunk of this number starts from, in host memory: of the rank's own
// frames. The seed of chunk r is the job's + r. `tap` may be null; it sees all of it.
Tensor initial_noise(const Rank& rank, const JobFacts& facts, int chunk, PipelineTap* tap);

// The reason why no checkpoint between two steps is enough to go on from, or "".
std::string why_not_between_steps(const Request& request);

// Throws Error(kUsage) that says why where the checkpoint cannot be resumed by the job with this
// record.
void check_resumable(const Checkpoint& checkpoint, const std::string& record,
                     const JobFacts& facts);
// The same where it is between two steps and why_not_between_steps() is a reason.
void check_between_steps(const Checkpoint& checkpoint, const Request& request);

// The tensors that a checkpoint must hold, with their shapes or counts.
struct NeededState {
  int total = 0;  // steps of the job
  std::array<int64_t, 4> latent{};
  std::vector<std::pair<std::string, int64_t>> history{};
};
void check_resumable(const Checkpoint& checkpoint, const std::string& record,
                     const NeededState& needed, const std::string& solver);

// The facts of Checkpoint::written that state the skipped steps of a cache that decides while a job
// runs; empty for other jobs. Then, the steps that a checkpoint states.
std::map<std::string, std::string> written_skips(const StepCache& cache);
std::optional<std::vector<int>> read_skips(const Checkpoint& from);
// Fills in, on every rank, which steps of such a job were skipped before its start, and returns the
// list (Job::skipped); null for other jobs. `from` is the root's checkpoint, or null. The root
// sends every other rank a byte per step.
std::vector<int>* agreed_skips(Stream& stream, const RankPlacement& placement,
                               const Checkpoint* from, const Start& start, Request& request);

// Returns the root's `step` on every rank. Error(kStopped) where the root's `stop` is set.
int agreed_step(Stream& stream, const RankPlacement& placement, int step,
                const std::atomic<bool>* stop);

// Gives every rank the state that the root's job starts from. `from` is the root's checkpoint, or
// null; its tensors are moved. The root sends every other rank its frames of the latent and of the
// tensors of the solver's history, each the size of a latent. Error(kStopped) where the root's
// `stop` is set.
Start agreed_start(Stream& stream, const RankPlacement& placement, Checkpoint* from,
                   const Sampler& sampler, const LatentSplit& split, const std::atomic<bool>* stop);

}  // namespace weft
