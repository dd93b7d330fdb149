#pragma once
// Job: what one run of a LatentProgram is given, and who sees what it makes. A segment is what
// enters and leaves as a whole: a video or a chunk of it, a block of the queue, a block of a
// stream.
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job_facts.h"
#include "engine/preview/preview_rows.h"
#include "kernels/tensor.h"
#include "models/transformer.h"
#include "parallel/context.h"
#include "parallel/schedule/plan.h"

namespace weft {

struct Segment {
  int64_t number = 0;  // among those with frames
  Range frames{};      // latent frames of the video or stream
  uint32_t epoch = 0;  // of a stream, as NextBlock says
};

// A host copy of segments' latents, joined along the frames [C, F, H, W] f32, and of the tensors of
// Sampler::history.
struct Snapshot {
  Tensor latent{};
  std::vector<std::pair<std::string, Tensor>> history{};
};

// Says what every rank does between two turns: go on, or first gather the latents and the solver's
// history on the root (kKeep), or stop.
enum class StepAction : uint8_t { kContinue, kKeep, kStop, kKeepAndStop };
inline bool keeps(StepAction action) {
  return action == StepAction::kKeep || action == StepAction::kKeepAndStop;
}
inline bool stops(StepAction action) { return action >= StepAction::kStop; }

// The sum of |a - b| and that of |b|, over values.
struct Change {
  double change = 0, size = 0;
  double relative() const { return size > 0 ? change / size : 0; }
};

// The previews of a job: how they are made, and who sees them. It must be the same on all ranks.
struct PreviewJob {
  const PreviewFit& fit;
  int every = 1;  // steps
  // Called on the root with the steps done and the colours [3, F, h, w] f32 of the latent that they
  // predict, in host memory, in [-1, 1] but for overshoot.
  std::function<void(int done, const TensorView& colours)> show{};
};

struct Job {
  const JobFacts& facts;  // JobFacts::window is the latent of a forward
  // Rows [length, d] f32 on the stream's device: those of the prompts, by Pass::request, and of the
  // negative prompt, which is not read without guidance. Then their vectors [d] f32, by branch,
  // where the model reads one.
  std::vector<TensorView> prompts{};
  TensorView negative{};
  std::array<TensorView, 2> pooled{};
  // Conditions of all passes beside the prompt, on the stream's device. So many of the latent's
  // frames, the first ones, are given: they stay as they begin. Only without clips.
  Conditions conditions{};
  int64_t given_frames = 0;
  // For a model that follows a sound: the signal per branch [frames of tokens, signal_columns] f32,
  // on the stream's device. A stream has one of its own.
  std::array<TensorView, 2> signal{};
  // Fills in the noise of frames of a segment [C, f, H, W] f32, in host memory. Every rank draws
  // what it needs. Not called where the job goes on from a snapshot.
  std::function<void(const Segment& segment, const TensorView& latent)> noise{};
  // On the root: what `keep` got in the turn that the run begins with, if there is one before it.
  // Its tensors are released once the ranks have their parts.
  Snapshot start{};
  // Called where the plan decodes, in order, with the final latent [C, f, H, W] f32 of a segment,
  // on the stream's device. With clips it is called for the frames of one token after another, on
  // all ranks: where a rank does not decode (receives_frames) the latent has no data.
  std::function<void(const Segment& segment, const TensorView& latent)> decode{};
  // Called before every turn, of the queue with the root's word (`decide`); that is 0 before the
  // first turn, without control, and after a kKeep, when it is called again. It must answer the
  // same on all ranks.
  std::function<StepAction(int turn, int64_t word)> before_turn{};
  // Called on the root when a turn begins, where QueuePlanConfig::control is set. All ranks get the
  // word before the next turn, without waiting for the root.
  std::function<int64_t(int turn)> decide{};
  // Called on every rank where the answer is kKeep. The root's snapshot has the latents.
  std::function<void(int turn, Snapshot snapshot)> keep{};
  // Called on the last stage with the guided velocity of rows of a segment, which are `own` of all
  // of the rank's rows of it.
  std::function<void(const Pass& pass, const Range& own, const TensorView& velocity)> on_velocity{};
  std::function<void(const Step& step)> on_step{};  // called after every step of the rank's plan

  // The rest is for jobs of one segment.
  // Called with clips, on all ranks, before the first frame is decoded. each(see) calls `see` on
  // the root with every channel [F, H, W] f32 of the final latent, in order, in host memory. All
  // ranks call `each`, the same number of times.
  using Channels = std::function<void(const std::function<void(const TensorView& channel)>& see)>;
  std::function<void(const Channels& each)> finished{};
  // Sees, and may alter, the change of a branch that this rank has measured after the first block.
  std::function<void(const Pass& pass, Change& change)> on_first_block{};
  // Where the cache decides while the job runs: the steps that it has skipped so far. The run
  // begins with those before its first step, and adds to them.
  std::vector<int>* skipped = nullptr;
  int cache_audit = 0;  // every so many skipped steps one is audited; 0: none
  // Makes previews, which change no bit of the result. Each costs a linear map of the rows that a
  // rank owns to 3 channels. The last stage's ranks but the root send 4 bytes per value of these.
  const PreviewJob* preview = nullptr;
  // For a single forward: the timesteps of its tokens, in place of the sampler's, and who sees the
  // results of preparing a prompt and of a forward.
  std::vector<TimeSegment> times{};
  Observer *prompt_observer = nullptr, *observer = nullptr;
};

}  // namespace weft
