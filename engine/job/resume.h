#pragma once
// Decides where a job starts: at the beginning, or at the step of a checkpoint.
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/job_facts.h"
#include "engine/job/options.h"
#include "engine/parts/rank.h"

namespace weft {

// Fills in frames of the noise [C, f, H, W] that the job's chunk of this number starts from, in
// host memory. The seed of chunk r is the job's + r. `tap` may be null; it sees all of it.
void initial_noise(const JobFacts& facts, int chunk, int64_t first, const TensorView& frames,
                   PipelineTap* tap);

// The reason why no checkpoint between two steps is enough to go on from, or "".
std::string why_not_between_steps(const Request& request);

// Names of Checkpoint::written for the queue, and of the tensor of its latent frames that were
// decoded last.
inline constexpr const char *kFrames = "frames", *kFrameHash = "framehash",
                            *kLatentHash = "signature", *kDecoded = "decoded";

// Throws Error(kUsage) that says why where the checkpoint cannot be resumed by the job with this
// record. `vae` decodes its latents.
void check_resumable(const Checkpoint& checkpoint, const std::string& record, const JobFacts& facts,
                     const VaeTraits& vae = {});

// The facts of Checkpoint::written that state the skipped steps of a cache that decides while a job
// runs; empty for other jobs. Then, the steps that a checkpoint states.
std::map<std::string, std::string> written_skips(const StepCache& cache);
std::optional<std::vector<int>> read_skips(const Checkpoint& from);
// Fills in, on every rank, which steps of such a job were skipped before its start, and returns the
// list (Job::skipped); null for other jobs. `from` is the root's checkpoint, or null. The root
// sends every other rank a byte per step.
std::vector<int>* agreed_skips(Stream& stream, const RankPlacement& placement,
                               const Checkpoint* from, int start, Request& request);

// Returns the root's `step` on every rank. Error(kStopped) where the root's `stop` is set.
int agreed_step(Stream& stream, const RankPlacement& placement, int step,
                const std::atomic<bool>* stop);

}  // namespace weft
