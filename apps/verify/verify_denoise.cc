// Stages clips and displaced of `weft verify`: approximations of attention in a whole generation,
// from noise to latents.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/verify/verify_run.h"
#include "engine/denoising/denoiser.h"
#include "engine/sampling/guidance.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

Request clips_request(const Case& c, int64_t frames) {
  const std::string what = c.file("case.json");
  constexpr IntRange kFrames{0, 1 << 20};
  Request request;
  request.guidance_scale = json_number(c.spec, "guidance_scale", what);
  request.guidance_scale_2 = request.guidance_scale;
  Clips clips;
  clips.window = json_int(c.spec, "window", what, kFrames);
  clips.global = json_int(c.spec, "global_frames", what, kFrames);
  clips.trained = json_int(c.spec, "trained_frames", what, kFrames);
  clips.bias = json_number(c.spec, "bias", what);
  clips.global_sigma = json_number(c.spec, "global_sigma", what);
  clips.stale = clips.warmup = 0;
  if (const std::string why = clips.refuse_frames(frames); !why.empty())
    throw Error(ErrorKind::kModel, what + ": " + why);
  request.method = clips;
  return request;
}

Request displaced_request(const Case& c) {
  Request request;
  request.guidance_scale = json_number(c.spec, "guidance_scale", c.file("case.json"));
  request.guidance_scale_2 = request.guidance_scale;
  request.method = Full();
  return request;
}

Tensor own_frames(Bench& bench, const Tensor& noise, const LatentSplit& split, int rank) {
  Tensor own = bench.tensor(DType::kF32, split.held(rank));
  const Range& frames = split.frames[rank];
  copy(bench.stream, noise.view().slice(1, frames.begin, frames.size()), own);
  return own;
}

// Puts the next frames of a latent, if the rank has them, into `whole`.
void place(Bench& bench, const TensorView& frames, int64_t& at, const Tensor& whole) {
  if (frames.data) {
    Stream host = host_stream(bench.stream);
    const HostCopy copied(bench.stream, frames);
    copy(host, copied.view(), whole.view().slice(1, at, frames[1]));
  }
  at += frames[1];
}

bool is_pipefusion(const Case& c) { return c.text("method") == "pipefusion"; }

Displaced displaced_of(const Case& c) {
  const std::string what = c.file("case.json"), name = c.text("method");
  Displaced method{.patches = json_ints(c.spec, "patches", what, {1, 1 << 20}),
                   .warmup = static_cast<int>(json_int(c.spec, "warmup", what, {0, kMaxSteps}))};
  if (name == "pcpp")
    method.window = json_number(c.spec, "window", what);
  else if (name != "distrifusion" && name != "pipefusion")
    throw Error(ErrorKind::kModel,
                what + ": method is '" + name + "', legal: distrifusion, pcpp, pipefusion");
  return method;
}

JobFacts facts_of(const Case& c, const Request& request) {
  JobFacts facts{
      .request = request,
      .sampler = {SamplerConfig::from_json_file(c.part_file("scheduler", "scheduler_config.json")),
                  c.integer("steps", kMaxSteps)},
      .guidance = {*request.guidance_scale}};
  facts.dual_scope = request.method->dual_scope(facts.sampler);
  return facts;
}

// Generates with the case's guidance and the seams of its placement. `steps` are those whose
// velocities are results.
NamedTensors denoise(Case& c, const std::function<JobFacts(const Sequence& all)>& facts_on,
                     const std::function<std::vector<int>(const Sampler& sampler)>& steps_of) {
  Bench bench(c);
  CaseTransformer experts(c, bench.stream);
  const TransformerTraits& traits = experts.traits();
  const TensorFile inputs = TensorFile::open(c.file("inputs.safetensors"));
  const Tensor noise = bench.load(inputs, "noise");
  const auto shape = noise.view().extent;
  const auto grid = traits.grid(shape[1], shape[2], shape[3]);
  const Sequence all{grid[0] * grid[1] * grid[2], grid[0]};
  const JobFacts facts = facts_on(all);
  const Sampler& sampler = facts.sampler;
  const std::vector<int> steps = steps_of(sampler);
  const int branches = guidance_branches(facts.guidance[0]);
  const Tensor positive = bench.load(inputs, "encoder_hidden_states");
  const Tensor negative =
      branches == 2 ? bench.load(inputs, "negative_encoder_hidden_states") : Tensor();

  const LatentSplit split =
      c.placement.split({shape[0], shape[1], shape[2], shape[3]}, traits.patch[0]);
  NamedTensors out;
  std::map<int, Tensor> velocities;  // this rank's rows
  DenoisePlanConfig config =
      staged_config(c.placement, traits, experts.dtype(), all, facts.patches);
  config.steps.assign(sampler.steps(), {.model = 0, .branches = branches});
  config.blocks = {traits.blocks};
  if (const auto& patches = facts.patches.pipefusion) displace_steps(config.steps, patches->warmup);
  Stream host = host_stream(bench.stream);
  out["latents"] = Tensor(DType::kF32, split.shape);
  int64_t decoded = 0;  // latent frames
  Job job{
      .facts = facts,
      .embeds = {positive.view(), negative.view()},
      .latent = own_frames(bench, noise, split, c.placement.rank()),
      .on_velocity =
          [&](int step, const Range& own, const TensorView& velocity) {
            if (std::ranges::count(steps, step) == 0) return;
            Tensor& rows = velocities[step];
            if (!rows)
              rows = Tensor(DType::kF32,
                            {c.placement.tokens(all, facts.patches).size(), traits.row()});
            const HostCopy copied(bench.stream, velocity);
            copy(host, copied.view(), rows.view().slice(0, own.begin, own.size()));
          },
      .decode = [&](const TensorView& frames) { place(bench, frames, decoded, out["latents"]); }};
  Denoiser({bench.stream, bench.arena, experts, c.placement}).run(config, job);

  for (const int step : steps) {
    const auto own = velocities.find(step);
    const Tensor rows =
        join_rows(bench, c.placement, own == velocities.end() ? TensorView() : own->second.view(),
                  c.placement.layout()[Axis::kLayers] - 1, step,
                  {.all = all, .columns = traits.row(), .patches = facts.patches});
    if (!c.placement.root()) continue;
    Tensor velocity(DType::kF32, {shape[0], shape[1], shape[2], shape[3]});
    unpatchify(host, rows, traits.patch, TokenRanges::all(all.tokens), velocity);
    out["velocity." + std::to_string(step)] = std::move(velocity);
  }
  return out;
}

}  // namespace

NamedTensors run_clips(Case& c) {
  return denoise(
      c, [&](const Sequence& all) { return facts_of(c, clips_request(c, all.frames)); },
      [](const Sampler& sampler) {
        return std::vector{0, sampler.steps() - 1};
      });
}

NamedTensors run_displaced(Case& c) {
  const Displaced method = displaced_of(c);
  return denoise(
      c,
      [&](const Sequence& all) {
        if (const std::string why = refuse(method, all.tokens); !why.empty())
          throw Error(ErrorKind::kModel, c.file("case.json") + ": " + why);
        JobFacts facts = facts_of(c, displaced_request(c));
        if (is_pipefusion(c))
          facts.patches.pipefusion = PipeFusion{method.patches, method.warmup};
        else
          facts.patches.displaced = method;
        return facts;
      },
      [&](const Sampler& sampler) {
        const int last = sampler.steps() - 1;
        return std::vector{std::min(method.warmup, last), last};
      });
}

MethodLimit limit_displaced(const Case& c) {
  const std::vector<int64_t> patches = displaced_of(c).patches;
  if (is_pipefusion(c) && !patches.empty())
    return {SplitRule::kStagedPatches, std::ranges::min(patches)};
  return {SplitRule::kPatches, std::ssize(patches)};
}

}  // namespace weft
