#pragma once
// A small segment queue and its run under a layout.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>

#include "engine/sampling/guidance.h"
#include "engine/sampling/noise_pool.h"
#include "engine/schedules/denoiser.h"
#include "engine/schedules/queue_denoiser.h"
#include "kernels/copy.h"
#include "models/blocks.h"
#include "parallel/transport/local.h"
#include "tests/engine/lambda_host.h"
#include "tests/engine/toy_attention.h"

namespace weft::test {

struct QueueNumbers {
  SegmentFrames frames{3, 2};
  int segments = 6, steps = 5, layers = 3, experts = 1;
  double guidance = 3;
  SolverKind solver = SolverKind::kUniPCDiffusers;
  std::vector<int> prompts{};
  uint64_t seed = 7;
  float negative = -0.5f;
  std::vector<int> skipped{};  // steps

  int64_t height = 4, width = 4;
  std::array<int64_t, 4> shape(int segment) const {
    return {2, frames.count(segment), height, width};
  }
  Sampler sampler() const {
    SamplerConfig config;
    config.kind = solver;
    config.shift = 3;
    return {config, steps};
  }
  // The low-noise expert has the second half of the timesteps.
  std::vector<DenoisePlanConfig::DenoiseStep> step_list() const {
    auto list = steps_of(sampler(), 0.7, std::vector<double>(experts, guidance));
    for (const int step : skipped) list[step].skipped = true;
    return list;
  }
  float prompt(int segment) const {
    return prompts.empty() ? 0.5f : 0.5f + static_cast<float>(prompts[segment]);
  }
  Tensor noise(int segment) const {
    Tensor x(DType::kF32, shape(segment));
    NoisePool(NoiseMode::kPool, Rng::kPortable, seed, {2, frames.first(segments), height, width},
              frames)
        .fill(segment, x);
    return x;
  }
};

using StepOf = std::pair<int, int>;  // segment, step

struct Video {
  std::map<int, Tensor> latents;  // by segment, [C, n, H, W]
  std::map<StepOf, Tensor>
      velocities;  // guided, rows of the segment's own frames; on one part alone
};

inline bool same(const Video& a, const Video& b) {
  for (const auto& [segment, latent] : a.latents)
    if (!b.latents.count(segment) || !same_bits(latent, b.latents.at(segment))) return false;
  return a.latents.size() == b.latents.size();
}

inline Tensor copy_of(const TensorView& x) {
  Stream stream = Stream::cpu(1);
  Tensor copied(DType::kF32, x.shape());
  copy(stream, x, copied);
  return copied;
}

inline Layout layout_of(std::initializer_list<std::pair<Axis, int>> axes) {
  Layout layout;
  for (const auto& [axis, parts] : axes) layout[axis] = parts;
  return layout;
}
inline Layout stages(int count) { return layout_of({{Axis::kLayers, count}}); }

inline std::vector<Layout> queue_layouts() {
  return {stages(1),
          stages(2),
          stages(3),
          layout_of({{Axis::kCfg, 2}}),
          layout_of({{Axis::kUlysses, 2}}),
          layout_of({{Axis::kUlysses, 3}}),
          layout_of({{Axis::kCfg, 2}, {Axis::kLayers, 2}}),
          layout_of({{Axis::kLayers, 2}, {Axis::kUlysses, 2}}),
          layout_of({{Axis::kCfg, 2}, {Axis::kUlysses, 2}})};
}

struct QueueHooks {
  std::function<void(ToyAttention&)> model{};
  std::function<void(const Pass&, const TensorView& velocity)> on_update{};  // may change it
  std::function<bool(Communicator*, int turn)> before_turn{};
  int stop_at = -1;                                // the root decides it in this turn
  std::function<void(int turn, Snapshot)> kept{};  // of every turn but the first
  int first_turn = 0;
  std::function<Snapshot()> start{};  // what was kept of that turn
  std::function<void(Communicator&)> done{};
  std::function<void(const RankPlacement&, size_t bytes)> kept_keys{};
  DType wire = DType::kF32;
  LocalOptions local{};
  int decoder = 0;
  bool keep = true;  // latents and velocities
};

// The video of the product's queue under a layout.
inline Video run_queue(const QueueNumbers& n, const Layout& layout = {},
                       const QueueHooks& hooks = {}) {
  Video video;
  std::mutex mutex;
  const JobFacts facts{.request = {},
                       .sampler = n.sampler(),
                       .window = n.shape(0),
                       .guidance = {n.guidance, n.guidance}};
  const auto rank = [&](Communicator* world) {
    Stream stream = Stream::cpu(1);
    Arena arena(size_t{1} << 28);
    ToyAttentionExperts experts(n.experts, n.layers);
    for (auto& model : experts.models)
      if (hooks.model) hooks.model(*model);
    RankPlacement placement = world ? RankPlacement::of(*world, layout) : RankPlacement();
    QueuePlanConfig config =
        queue_config(placement, experts.traits(), hooks.wire, n.shape(0), n.frames.segment);
    config.steps = n.step_list();
    config.segments = n.segments;
    config.layers.assign(n.experts, n.layers);
    config.prompts = n.prompts;
    config.decoder = hooks.decoder;
    std::vector<float> texts{0.5f, 1.5f, 2.5f};
    std::vector<TensorView> prompts;
    for (float& text : texts) prompts.push_back(TensorView(&text, DType::kF32, {1, 1}));
    float negative = n.negative;
    LambdaHost host;
    Job job{.facts = facts,
            .host = host,
            .prompts = prompts,
            .negative = TensorView(&negative, DType::kF32, {1, 1})};
    host.on_noise = [&](const Segment& segment, const TensorView& to) {
      copy(stream, n.noise(static_cast<int>(segment.number)), to);
    };
    host.on_take = [&](const Segment& segment, const TensorView& latent) {
      if (!hooks.keep) return;
      const auto number = static_cast<int>(segment.number);
      EXPECT_EQ(segment.frames.begin, n.frames.first(number));
      EXPECT_EQ(segment.frames.size(), n.frames.count(number));
      const std::scoped_lock lock(mutex);
      const int decoded = std::max(0, hooks.first_turn - n.steps);
      EXPECT_EQ(number, decoded + std::ssize(video.latents));  // in order
      video.latents[number] = copy_of(latent);
    };
    host.on_velocity = [&](const Pass& pass, const Range&, const TensorView& velocity) {
      if (hooks.on_update) hooks.on_update(pass, velocity);
      if (!hooks.keep) return;
      const std::scoped_lock lock(mutex);
      video.velocities[{pass.segment, pass.step}] = copy_of(velocity);
    };
    config.control = hooks.stop_at >= 0 || hooks.kept;
    config.first_turn = hooks.first_turn;
    if (hooks.start && placement.root()) job.start = hooks.start();
    int obeyed = -1;
    host.on_decide = [&](int turn) {
      EXPECT_TRUE(placement.root());
      const StepAction otherwise = hooks.kept ? StepAction::kKeep : StepAction::kContinue;
      return static_cast<int64_t>(turn == hooks.stop_at ? StepAction::kStop : otherwise);
    };
    host.on_turn = [&](int turn, int64_t word) {
      const auto action = static_cast<StepAction>(word);
      if (action == StepAction::kStop) obeyed = turn;
      const bool goes_on = !hooks.before_turn || hooks.before_turn(world, turn);
      return goes_on ? action : StepAction::kStop;
    };
    host.on_keep = [&](int turn, Snapshot snapshot) {
      if (placement.root()) hooks.kept(turn, std::move(snapshot));
    };
    QueueDenoiser denoiser({stream, arena, experts, placement}, hooks.wire);
    const bool done = denoiser.run(config, job);
    if (done && hooks.kept_keys) hooks.kept_keys(placement, denoiser.context_bytes());
    const int last = n.segments + n.steps - 1;
    EXPECT_TRUE(hooks.before_turn || done == (hooks.stop_at < 0 || hooks.stop_at >= last));
    EXPECT_EQ(obeyed, hooks.stop_at >= 0 && hooks.stop_at < last ? hooks.stop_at + 1 : -1);
    if (hooks.done) hooks.done(*world);
  };
  if (layout.ranks() == 1)
    rank(nullptr);
  else
    run_ranks(
        layout.ranks(), [&](Communicator& world) { rank(&world); }, hooks.local);
  return video;
}

}  // namespace weft::test
