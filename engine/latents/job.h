#pragma once
// Job: what one run of a LatentProgram is given, and who sees what it makes. A segment is what
// enters and leaves as a whole: a video or a chunk of it, a segment of the queue, a segment of a
// stream.
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job_facts.h"
#include "engine/preview/preview_fit.h"
#include "kernels/tensor.h"
#include "models/transformer.h"
#include "parallel/context.h"
#include "parallel/schedule/plan.h"

namespace weft {

struct Segment {
  int64_t number = 0;  // among those with frames
  Range frames{};      // latent frames of the video or stream
  uint32_t epoch = 0;  // of a stream, as NextSegment says
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

struct NextSegment {
  int64_t frames = 0;  // at most P, whole tokens; 0: hollow
  uint32_t epoch = 0;  // travels with the segment
  bool last = false;   // no other follows, this one included if it is hollow
};

// JobHost: where the segments of a job come from, where they go, and who watches and steers it.
// Every rank has one.
class JobHost {
 public:
  virtual ~JobHost() = default;

  // Fills in the noise of frames of a segment [C, f, H, W] f32, in host memory. Every rank draws
  // what it needs. Not called for segments that a snapshot has, nor in a dry run.
  virtual void noise(const Segment&, const TensorView& /*latent*/) {}
  // Says which segment of a stream enters next; `number` is that of the next segment with frames,
  // and `most` the largest. Called on the first rank, in order, once per segment. It may wait, but
  // in a layer ring only while no segment is under way. The first segment has frames, at least
  // those of the sink where it is swapped, unless the stream ends with it.
  virtual NextSegment next(int64_t /*number*/, int64_t most) { return {.frames = most}; }
  // Fills in the signal that a segment of a stream follows [f, signal_columns] f32 in host memory,
  // a row for each frame of tokens. Called on the first rank, after next(), for every segment with
  // frames. A sink is computed in silence: zeros.
  virtual void signal(const Segment& segment, const TensorView& signal);

  // Takes a final latent [C, f, H, W] f32, on the stream's device, where the plan decodes, in
  // order. With clips it is called for the frames of one token after another, on all ranks: where a
  // rank does not decode (receives_frames) the latent has no data.
  virtual void take(const Segment&, const TensorView& /*latent*/) {}
  // Called with clips, on all ranks, before the first frame is decoded. each(see) calls `see` on
  // the root with every channel [F, H, W] f32 of the final latent, in order, in host memory. All
  // ranks call `each`, the same number of times.
  using Channels = std::function<void(const std::function<void(const TensorView& channel)>& see)>;
  virtual void take_channels(const Channels& /*each*/) {}

  // Called before every turn, of the queue with the root's word (`decide`); that is 0 before the
  // first turn, without control, and after a kKeep, when it is called again. It must answer the
  // same on all ranks.
  virtual StepAction before_turn(int /*turn*/, int64_t word) {
    return static_cast<StepAction>(word);
  }
  // Called on the root when a turn begins, where QueuePlanConfig::control is set. All ranks get the
  // word before the next turn, without waiting for the root.
  virtual int64_t decide(int /*turn*/) { return 0; }
  // Called on every rank where before_turn answers kKeep. The root's snapshot has the latents.
  virtual void keep(int /*turn*/, Snapshot) {}
  // Sees, on the last stage, the guided velocity of rows of a segment, which are `own` of all of
  // the rank's rows of it.
  virtual void velocity(const Pass&, const Range& /*own*/, const TensorView&) {}
  // Sees, and may alter, the change of a branch that this rank has measured after the first block.
  virtual void first_block(const Pass&, Change&) {}
  virtual void stepped(const Step&) {}  // called after every step of the rank's plan
  // Called on the root with the steps done and the colours [3, F, h, w] f32 of the latent that they
  // predict, in host memory, in [-1, 1] but for overshoot.
  virtual void preview(int /*done*/, const TensorView& /*colours*/) {}
};

// Previews change no bit of the result. Each costs a linear map of the rows that a rank owns to 3
// channels. The last stage's ranks but the root send 4 bytes per value of these. They must be the
// same on all ranks.
struct PreviewJob {
  const PreviewFit* fit = nullptr;  // null: none
  int every = 1;                    // steps
};

struct Job {
  const JobFacts& facts;  // JobFacts::window is the latent of a forward
  JobHost& host;
  // Rows [length, d] f32 on the stream's device: of the prompts, by Pass::prompt, and of the
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
  // On the root: what `keep` got in the turn that the run begins with, if there is one before it.
  // Its tensors are released once the ranks have their parts.
  Snapshot start{};
  // The rest is for jobs of one segment.
  // The steps that a cache which decides while the job runs has skipped so far: the run begins with
  // the ones before its first step, and adds to them.
  std::vector<int>* skipped = nullptr;
  int cache_audit = 0;  // every so many skipped steps one is audited; 0: none
  PreviewJob preview{};
  // For a single forward: the timesteps of its tokens, in place of the sampler's, and who sees the
  // results of preparing a prompt and of a forward.
  std::vector<TimeSegment> times{};
  Observer *prompt_observer = nullptr, *observer = nullptr;
};

}  // namespace weft
