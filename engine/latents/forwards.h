#pragma once
// Forwards: the forwards of a job on one rank. It keeps the experts in use and the prompts that are
// prepared for them, records forwards as device graphs, and finds NaN and infinity.
#include <array>
#include <functional>
#include <map>
#include <memory>

#include "engine/latents/block_cache.h"
#include "engine/latents/finite_watch.h"
#include "engine/latents/job.h"
#include "engine/parts/rank.h"
#include "engine/parts/seams.h"
#include "kernels/device_graph.h"

namespace weft {

// PassContext: says of passes what the job does not say of all of them.
class PassContext {
 public:
  virtual ~PassContext() = default;
  virtual void condition(const Pass&, Conditions&) {}
  // The rotary angles of a pass, and its tokens' grid; null: the angles and the grid of the job's
  // latent, with which its prompt was prepared.
  virtual const Rope* positions(const Pass&) { return nullptr; }
  virtual float timestep(const Pass& pass) = 0;
  // The signal of a pass [frames of its grid, signal_columns] f32, on the stream's device, for a
  // model that follows one.
  virtual TensorView signal(const Pass& pass) = 0;
};

struct ForwardJob {
  const Job& job;
  std::array<int64_t, 3> grid;  // tokens of the job's latent along frame, row and column
  ForwardMethod method{};
  bool in_segments = false;  // an error names the segment (Pass::segment) of a pass
  bool by_micro = false;     // passes that differ in Pass::micro are prepared apart
};

struct ForwardOptions {
  HiddenHook hook{};
  bool repeats = true;  // it enqueues the same work as the other forwards of its branch
};

class Forwards {
 public:
  // A prompt, prepared for one expert.
  struct Prepared {
    std::unique_ptr<Conditioning> conditioning;
    Rope rope;
  };

  Forwards(const Rank& rank, Graphs graphs, PassContext& passes);

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

  const Sampler& sampler() const { return job_->job.facts.sampler; }
  // Weight offload of this job's forwards.
  const OffloadTotals& streaming() const { return streaming_; }

 private:
  [[noreturn]] void report_non_finite(const Pass& pass, const std::string& where) const;
  struct Held {
    const Transformer* expert = nullptr;
    WeightOffload outside{};  // offload outside of this job's forwards
  };
  void enqueue(const Step& step, const TensorView& embedding, const TensorView& signal,
               const Blocks& blocks, const HiddenHook& hook);
  bool recordable(const Step& step, const CommCounters& messages) const;
  CommCounters counters() const;
  void release();
  const std::array<int64_t, 3>& grid(const Pass& pass) const;
  Sequence sequence_of(const std::array<int64_t, 3>& grid) const;
  std::vector<TimeSegment> times_of(const Pass& pass) const;
  TensorView signal_of(const Pass& pass) const;

  Stream& stream_;
  Arena& arena_;
  Experts& experts_;
  const RankPlacement& placement_;
  PassContext& passes_;
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
    CommCounters messages{};  // of one forward
  };
  std::array<Recorded, 2> recorded_;
  FiniteWatch watch_;
  OffloadTotals streaming_;
};

}  // namespace weft
