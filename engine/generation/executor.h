#pragma once
// Executor: runs the steps of a plan in their order. It does nothing that is not in the plan, so a
// trace and a plan correspond one to one.
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "engine/generation/components.h"
#include "engine/generation/finite_watch.h"
#include "engine/generation/rank_placement.h"
#include "engine/generation/request.h"
#include "engine/sampling/sampler.h"
#include "kernels/arena.h"
#include "kernels/device_graph.h"
#include "parallel/context.h"
#include "parallel/schedule/denoise_plan.h"

namespace weft {

// Describes a job to plan_denoise: the expert of every step (chosen by its timestep), the forwards
// per step, the replica's layout and the sizes of its messages.
DenoisePlanConfig plan_config(const Request& request, const Sampler& sampler,
                              const Components& parts, const RankPlacement& placement,
                              int64_t tokens);

// The guidance scale that a request gives to expert `model`.
double guidance_of(const Request& request, int model);

// Says what every rank does between two steps: go on, or first gather the latent and the solver's
// history on the root (kKeep), or stop.
enum class StepAction : uint8_t { kContinue, kKeep, kStop, kKeepAndStop };

// A host copy of the latent [C, F, H, W] f32 and of the tensors of Sampler::history.
struct Snapshot {
  Tensor latent{};
  std::vector<std::pair<std::string, Tensor>> history{};
};

struct Job {
  const Request& request;  // resolved
  const Sampler& sampler;
  // `embeds` and `latent` are on the stream's device.
  std::array<TensorView, 2> embeds;  // per branch [length, d] f32, the prompt's rows
  TensorView latent;                 // [C, F, H, W] f32: noise in, final latents out on every rank
  int first_step = 0;                // the first step of the plan
  // The solver's history of a resumed job, in Sampler::history's order, on the device or the host.
  // Empty when the job starts at step 0.
  std::vector<TensorView> history{};
  std::function<void(int step)> on_update;  // called after the update of `step`
  std::function<void()> decode;             // runs the plan's kDecode
  // Called before every step with the number of steps done. It must answer the same on all ranks.
  std::function<StepAction(int done)> before_step{};
  std::function<void(int done, Snapshot)> keep{};  // called on the root when the answer is kKeep
};

class Executor {
 public:
  Executor(Stream& stream, Arena& arena, Experts& experts, RankPlacement& placement,
           Graphs graphs = Graphs::kRecord);

  // Throws Error(kNonFinite) that names stage, step and block where a velocity is not finite, and
  // Error(kStopped) where before_step says so. A checkpoint makes every rank but the root send 4
  // bytes per value that it updates, for the latent and for each tensor of the history.
  void run(const Plan& plan, Job& job);

  // Weight offload of the last run's forwards.
  const OffloadTotals& streaming() const { return streaming_; }

 private:
  struct Prepared;
  void walk(const Step& step, Job& job);
  void load(const Job& job, int model);
  void release_expert();
  void before_step(int done, Job& job);
  Snapshot gather(int done, const Job& job);
  void compute(const Step& step, const Job& job);
  void update(const Step& step, const Job& job);
  void forward(const Step& step, const Job& job, const Prepared& prepared);
  void enqueue(const Step& step, const Job& job, const TensorView& embedding,
               const Prepared& prepared);
  bool recordable(const Step& step) const;
  void send(const Step& step, const Job& job);
  void receive(const Step& step, const Job& job);
  void wait(const Step& step);
  int64_t tokens() const { return grid_[0] * grid_[1] * grid_[2]; }
  const TensorView& wire(int slot, DType dtype, int64_t rows, int64_t columns);
  Tag tag_of(const Step& step, const Job& job) const;
  [[noreturn]] void report_non_finite(const Step& step, const Job& job, const std::string& where);

  Stream& stream_;
  Arena& arena_;
  Experts& experts_;
  RankPlacement& placement_;
  Graphs graphs_;
  int model_ = -1;
  const Transformer* expert_ = nullptr;
  // A prompt, prepared for the current expert.
  struct Prepared {
    std::unique_ptr<Conditioning> conditioning;
    Rope rope;
  };
  std::array<std::optional<Prepared>, 2> prepared_;  // per branch
  std::array<int64_t, 3> grid_{};                    // the latent's tokens
  // Device graphs of the forward, one per branch, for the current expert and prompts. A forward is
  // recorded at its second step.
  struct Recorded {
    DeviceGraph graph;
    size_t arena = 0;  // arena bytes in use when it was recorded
    bool ran = false;  // it ran once op by op, so libraries have made their plans and scratch
  };
  std::array<Recorded, 2> recorded_;
  std::array<Tensor, 2> velocities_;  // per branch [C, F, H, W] f32
  std::optional<SamplerState> history_;
  FiniteWatch watch_;
  OffloadTotals streaming_;
  WeightOffload outside_forwards_;  // the current expert's offload outside of this run's forwards
  // Message buffers, by slot of the plan: hidden rows [n, D] in the compute dtype, and tokens of
  // velocities and latents [n, C p] f32. sending_ holds the sends that still read them.
  std::map<int, Tensor> wires_;
  std::map<int, std::vector<Communicator::Pending>> sending_;
};

}  // namespace weft
