#pragma once
// Executor: walks a plan. Everything it does stands in the plan, so that a trace and a plan line up
// one to one.
#include <array>
#include <functional>
#include <map>
#include <optional>

#include "engine/components.h"
#include "engine/finite_watch.h"
#include "engine/replica.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "kernels/arena.h"
#include "kernels/device_graph.h"
#include "parallel/context.h"
#include "parallel/denoise_plan.h"

namespace weft {

// The expert of every step, from the timestep the model is given, and its forwards; the replica's
// layout and what its messages hold.
DenoisePlanConfig plan_config(const Request& request, const Sampler& sampler,
                              const Components& parts, const Replica& replica, int64_t tokens);

// The guidance scale of an expert.
double guidance_of(const Request& request, int model);

// What every rank does between two steps: go on, or bring the latent and the solver's history to
// the root first, or stop there.
enum class Boundary : uint8_t { kGoOn, kKeep, kStop, kKeepAndStop };

// The latent [C, F, H, W] f32 and what Sampler::history names, as a copy on the host.
struct Snapshot {
  Tensor latent{};
  std::vector<std::pair<std::string, Tensor>> history{};
};

struct Job {
  const Request& request;  // resolved
  const Sampler& sampler;
  // On the stream's device.
  std::array<TensorView, 2> embeds;  // per branch [length, d] f32, the prompt's rows
  TensorView latent;                 // [C, F, H, W] f32: noise in, final latents out on every rank
  int first_step = 0;                // the plan's
  // What the solver goes on with, in Sampler::history's order, there or on the host; empty at step
  // 0.
  std::vector<TensorView> history{};
  std::function<void(int step)> on_update;  // after the update of `step`
  std::function<void()> decode;             // the plan's kDecode
  // Before every step, with the steps done: the same answer on all ranks.
  std::function<Boundary(int done)> boundary{};
  std::function<void(int done, Snapshot)> keep{};  // the root's, where the answer says so
};

class Executor {
 public:
  Executor(Stream& stream, Arena& arena, Experts& experts, Replica& replica,
           Graphs graphs = Graphs::kRecord);

  // Error(kNonFinite) naming stage, step and block where a velocity is not finite; Error(kStopped)
  // where a boundary says so. To keep costs a rank that is not the root 4 bytes per value that it
  // updates and per tensor of the history.
  void run(const Plan& plan, Job& job);

  // Of the last run's forwards.
  const Streaming& streaming() const { return streaming_; }

 private:
  void walk(const Step& step, Job& job);
  void load(const Job& job, int model);
  void release_expert();
  void at_boundary(int done, Job& job);
  Snapshot gather(int done, const Job& job);
  void compute(const Step& step, const Job& job);
  void update(const Step& step, const Job& job);
  void forward(const Step& step, const Job& job, const WanText& text);
  void give(const Step& step, const Job& job, const TensorView& embedding, const WanText& text);
  bool recordable(const Step& step) const;
  void send(const Step& step, const Job& job);
  void receive(const Step& step, const Job& job);
  void wait(const Step& step);
  int64_t tokens() const;  // of the whole latent
  const TensorView& wire(int slot, DType dtype, int64_t rows, int64_t columns);
  Tag tag_of(const Step& step, const Job& job) const;
  [[noreturn]] void report_non_finite(const Step& step, const Job& job, const std::string& where);

  Stream& stream_;
  Arena& arena_;
  Experts& experts_;
  Replica& replica_;
  Graphs graphs_;
  int model_ = -1;
  const WanTransformer* expert_ = nullptr;
  std::array<std::optional<WanText>, 2> texts_;  // per branch, of the present expert
  std::optional<Rope> rope_;
  // A device's forwards of all blocks, recorded at their second step; per branch, of the present
  // expert and texts.
  struct Recorded {
    DeviceGraph graph;
    size_t arena = 0;  // in use before it
    bool ran = false;  // one by one: libraries have their plans and scratch its size
  };
  std::array<Recorded, 2> recorded_;
  std::array<Tensor, 2> velocities_;  // per branch [C, F, H, W] f32
  std::optional<SamplerState> history_;
  FiniteWatch watch_;
  Streaming streaming_;
  StreamedWeights apart_;  // of the present expert, in other passes than this run's forwards
  // What travels, by slot of the plan: hidden rows [n, D] in the compute dtype, tokens of
  // velocities and latents [n, C p] f32; and the sends that still read them.
  std::map<int, Tensor> wires_;
  std::map<int, std::vector<Communicator::Pending>> sending_;
};

}  // namespace weft
