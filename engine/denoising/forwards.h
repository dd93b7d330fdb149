#pragma once
// Forwards: the forwards of a job on one rank. It keeps the experts in use and the prompts that are
// prepared for them, records forwards as device graphs, and finds NaN and infinity.
#include <array>
#include <functional>
#include <map>
#include <memory>

#include "engine/denoising/block_cache.h"
#include "engine/denoising/finite_watch.h"
#include "engine/parts/rank.h"
#include "engine/parts/seams.h"
#include "engine/sampling/sampler.h"
#include "kernels/device_graph.h"

namespace weft {

// The conditions that come from pictures (engine/pictures/picture_conditions.h), on the stream's
// device.
struct PictureViews {
  TensorView rows{};       // Conditions::image
  TensorView channels{};   // Conditions::channels
  int64_t frames = 0;      // of the latent, the first ones: given, with tokens of timestep 0
  TensorView reference{};  // Conditions::reference
};

// The part of a job that its forwards need.
struct ForwardJob {
  const Sampler& sampler;
  std::array<int64_t, 3> grid{};  // tokens of a forward along frame, row and column
  ForwardMethod method{};
  // The rows [length, d] f32 of the prompt that a pass is conditioned on, on the stream's device.
  std::function<TensorView(const Pass& pass)> text;
  // The vector [d] f32 of that prompt, and the scale of guidance, where the model reads them.
  std::function<TensorView(const Pass& pass)> pooled{};
  double guidance = 0;
  bool in_blocks = false;  // an error names the block (Pass::clip) of a pass
  // Fills in what a pass is conditioned on beside the prompt, where there is more. Passes that
  // differ in Pass::micro are then prepared apart if `by_micro` is set.
  std::function<void(const Pass& pass, Conditions& conditions)> condition{};
  bool by_micro = false;
  PictureViews pictures{};
  // These are set by a job whose passes differ in their grids or in what a step's timestep is. A
  // pass then has the tokens of its rotary angles' grid. Otherwise the angles are those that its
  // prompt was prepared with, and the timestep is the sampler's.
  std::function<const Rope&(const Pass& pass)> rope{};
  std::function<float(const Pass& pass)> timestep{};
  // The signal of a pass [frames of its grid, signal_columns] f32, on the stream's device, for a
  // model that follows one.
  std::function<TensorView(const Pass& pass)> signal{};
};

struct ForwardOptions {
  HiddenHook* hook = nullptr;
  bool repeats = true;  // it enqueues the same work as the other forwards of its branch
};

class Forwards {
 public:
  // A prompt, prepared for one expert.
  struct Prepared {
    std::unique_ptr<Conditioning> conditioning;
    Rope rope;
  };

  Forwards(const Rank& rank, Graphs graphs);

  void begin(ForwardJob job);
  // Makes an expert resident, alone or beside those that are.
  void load(int model, bool alone);
  // Forgets the prompts for which `unused` is true.
  void forget(const std::function<bool(const Pass& prompt)>& unused);
  // Forgets the recorded forwards: they would now compute something else.
  void forget_graphs() { recorded_ = {}; }
  // Forgets all experts and prompts, which the job does not need any more.
  void end();
  void finish_messages() { seams_->finish(); }

  const Transformer& expert(const Pass& pass) const { return *held_.at(pass.model).expert; }
  const Prepared& prepared(const Pass& pass);
  // Runs blocks(forward), where forward(blocks, in, out) enqueues blocks of the transformer.
  // `latent` is where the step's rows came from, or empty: an error says if it was not finite.
  using Blocks = std::function<void(const BlockCache::Forward& forward)>;
  void run(const Step& step, const TensorView& latent, const Blocks& blocks,
           const ForwardOptions& options = {});
  // Throws Error(kNonFinite) where an updated latent has NaN or infinity.
  void check_latent(const Pass& pass, const TensorView& latent) const;

  const Sampler& sampler() const { return job_->sampler; }
  // Weight offload of this job's forwards.
  const OffloadTotals& streaming() const { return streaming_; }

 private:
  [[noreturn]] void report_non_finite(const Pass& pass, const std::string& where) const;
  struct Held {
    const Transformer* expert = nullptr;
    WeightOffload outside{};  // offload outside of this job's forwards
  };
  void enqueue(const Step& step, const TensorView& embedding, const TensorView& signal,
               const Blocks& blocks, HiddenHook* hook);
  bool recordable(const Step& step) const;
  void release();
  const Rope& rope(const Pass& pass) { return job_->rope ? job_->rope(pass) : prepared(pass).rope; }
  Sequence sequence(const Pass& pass) const;
  std::vector<TimeSegment> times_of(const Pass& pass) const;
  TensorView signal_of(const Pass& pass) const;

  Stream& stream_;
  Arena& arena_;
  Experts& experts_;
  const RankPlacement& placement_;
  Graphs graphs_;
  std::optional<ForwardJob> job_;
  std::optional<ForwardSeams> seams_;
  std::map<int, Held> held_;           // by expert
  std::map<Pass, Prepared> prepared_;  // by expert, branch and request, or by micro too
  // Device graphs of the forward, one per branch, for the current expert and prompts. A forward is
  // recorded at its second step.
  struct Recorded {
    DeviceGraph graph;
    size_t arena = 0;  // arena bytes in use when it was recorded
    bool ran = false;  // it ran once op by op, so libraries have made their plans and scratch
  };
  std::array<Recorded, 2> recorded_;
  FiniteWatch watch_;
  OffloadTotals streaming_;
};

}  // namespace weft
