// Stage queue of `weft verify`: the segment queue of a long video.
#include <algorithm>

#include "apps/verify/verify_run.h"
#include "engine/sampling/guidance.h"
#include "engine/sampling/noise_pool.h"
#include "engine/schedules/queue_denoiser.h"
#include "kernels/meter.h"

namespace weft {
namespace {

constexpr int kMostQueueFrames = 1 << 16;

// The numbers of the case.
struct QueueCase {
  SegmentFrames frames;
  int segments = 0, steps = 0;
  std::vector<double> guidance;  // by expert
  double boundary = 0;
  std::vector<int64_t> prompts;  // of each segment
  std::array<int64_t, 4> shape;  // of a forward's latent

  explicit QueueCase(const Case& c) {
    frames.segment = c.integer("block_frames", kMostQueueFrames);
    frames.context = c.integer("context_frames", IntRange{0, frames.segment});
    segments = c.integer("blocks", kMostQueueFrames);
    steps = c.integer("steps", kMaxSteps);
    guidance = {c.number("guidance_scale")};
    if (experts_of(c) > 1) {
      guidance.push_back(
          json_number_or(c.spec, "guidance_scale_2", c.file("case.json"), guidance[0]));
      boundary = c.number("boundary_ratio");
    }
    prompts = json_ints(c.spec, "prompts", c.file("case.json"), {0, kMostQueueFrames - 1});
    const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
    const TensorView noise = inputs.contains("noise") ? inputs.view("noise") : TensorView();
    if (noise.rank != 4 || noise[1] != frames.first(segments) || std::ssize(prompts) != segments)
      c.refuse(
          "noise is [C, blocks * block_frames + context_frames, H, W], and prompts has a number "
          "per block");
    shape = {noise[0], frames.count(0), noise[2], noise[3]};
  }
};

bool guided(const QueueCase& of) {
  return std::ranges::any_of(of.guidance, [](double g) { return guidance_branches(g) == 2; });
}

}  // namespace

NamedTensors run_queue(Case& c) {
  const ZoneScope zone(Zone::kDenoise);
  Bench bench(c);
  const QueueCase of(c);
  CaseExperts experts(c, bench.stream);
  const JobFacts facts{.request = {},
                       .sampler = sampler_of(c, of.steps),
                       .window = of.shape,
                       .guidance = of.guidance};
  QueuePlanConfig config =
      queue_config(c.placement, experts.traits(), c.options.dtype, of.shape, of.frames.segment);
  config.steps = steps_of(facts.sampler, of.boundary, of.guidance);
  config.segments = of.segments;
  config.prompts.assign(of.prompts.begin(), of.prompts.end());
  for (const auto& expert : experts.loaded) config.layers.push_back(expert->traits().blocks);
  CaseRun run(c, bench, experts, facts, [&](const Pass& pass, int rank) {
    const int part = c.placement.mesh().sequence_index(rank);
    const Range all = config.own(pass.segment), own = config.own(pass.segment, part);
    TokenRanges tokens{{}, all.size()};
    if (c.placement.rank_of(c.placement.layout()[Axis::kLayers] - 1, part) == rank)
      tokens.append({own.begin - all.begin, own.end - all.begin});
    return tokens;
  });
  std::vector<Tensor> texts;
  for (int k = 0; k <= std::ranges::max(of.prompts); ++k)
    texts.push_back(bench.load("encoder_hidden_states." + std::to_string(k)));
  run.job.prompts.assign(texts.begin(), texts.end());
  Tensor negative;
  if (guided(of)) negative = bench.load("negative_encoder_hidden_states");
  run.job.negative = negative;
  QueueDenoiser(run.rank(), c.options.dtype).run(config, run.job);
  std::vector<Range> segments;
  for (int segment = 0; segment < of.segments; ++segment) {
    const int64_t first = of.frames.first(segment);
    segments.push_back({first, first + of.frames.count(segment)});
  }
  return run.results(segments, of.steps);
}

LayoutLimits queue_limits(const Case& c) {
  const QueueCase of(c);
  LayoutLimits limits{.requests = 0, .method = {SplitRule::kBlocks}, .guided = guided(of)};
  for (int model = 0; model < std::ssize(of.guidance); ++model)
    limit_by(expert_model(c, model)->traits(), limits);
  const auto grid = expert_model(c, 0)->traits().grid(of.shape[1], of.shape[2], of.shape[3]);
  limits.tokens = grid[0] * grid[1] * grid[2];
  return limits;
}

}  // namespace weft
