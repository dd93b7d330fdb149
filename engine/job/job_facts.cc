#include "engine/job/job_facts.h"

#include <algorithm>
#include <numeric>

#include "engine/job/speech_chunks.h"
#include "engine/sampling/guidance.h"

namespace weft {
namespace {

// The scale with which the two velocities of each expert become one: 1 where the family has one
// velocity (GuidanceForm::kTold).
std::vector<double> guidance_of(const ModelDirectory& model, const Request& request) {
  std::vector<double> scales(model.experts(), 1);
  const GuidanceForm form = model.family->guidance;
  if (form == GuidanceForm::kTold) return scales;
  for (int expert = 0; expert < model.experts(); ++expert) {
    scales[expert] = expert ? *request.guidance_scale_2 : *request.guidance_scale;
    if (form == GuidanceForm::kBeyondPositive) ++scales[expert];
  }
  return scales;
}

// The prompt that each segment of the queue shows: that of the schedule at its first picture.
std::vector<int> segment_prompts_of(const ModelDirectory& model, const Request& request,
                                    int64_t latent_frames) {
  const Queue& queue = std::get<Queue>(request.method);
  const VaeTraits& vae = model.vae_model->traits;
  std::vector<int> prompts(queue.segments(latent_frames));
  for (size_t segment = 0; segment < prompts.size(); ++segment) {
    const int64_t first = queue.frames().first(static_cast<int>(segment));
    const double begins = first ? double(vae.frames(first)) / request.fps : 0;
    const auto later = std::ranges::find_if(
        request.schedule, [&](const ScheduledPrompt& each) { return each.seconds > begins; });
    prompts[segment] = static_cast<int>(later - request.schedule.begin());
  }
  return prompts;
}

}  // namespace

std::array<int64_t, 4> latent_of(const ModelDirectory& model, const Request& request) {
  const VaeTraits& vae = model.vae_model->traits;
  return {vae.channels,
          model.chunks.any() ? model.chunks.latent_frames : vae.latent_frames(request.frames),
          request.height / vae.spatial_factor, request.width / vae.spatial_factor};
}

std::array<int64_t, 3> grid_of(const ModelDirectory& model, const Request& request) {
  const auto latent = latent_of(model, request);
  return model.expert(0).traits().grid(latent[1], latent[2], latent[3]);
}

ReferenceSize reference_size_of(const ModelDirectory& model, const GivenPicture& picture) {
  const std::array<int64_t, 3>& patch = model.expert(0).traits().patch;
  const auto [width, height] = picture.size();
  return model.pictures.reference_size(
      width, height, model.pictures.reference_area,
      model.vae_model->traits.spatial_factor * std::lcm(patch[1], patch[2]));
}

SamplerConfig sampler_of(const OpenModel& model, const Request& request) {
  SamplerConfig config = model.sampler();
  if (!request.solver.empty()) config.kind = solver_from_name(request.solver);
  config.even_sigmas = model.directory.family->even_sigmas;
  if (request.flow_shift) return config.with_shift(*request.flow_shift);
  const auto [frames, rows, columns] = grid_of(model.directory, request);
  const int64_t tokens = frames * rows * columns;
  if (const auto& exponent = model.directory.family->shift_exponent)
    return config.for_exponent(exponent(tokens, request.steps));
  return config.dynamic ? config.for_tokens(tokens) : config;
}

std::vector<DenoiseStep> steps_of(const Sampler& sampler, double boundary_ratio,
                                  std::span<const double> guidance) {
  const double boundary = boundary_ratio * sampler.config().train_timesteps;
  std::vector<DenoiseStep> steps;
  for (const float timestep : sampler.timesteps()) {
    const int model = guidance.size() > 1 && timestep < boundary ? 1 : 0;
    steps.push_back({model, guidance_branches(guidance[model])});
  }
  return steps;
}

std::vector<DenoiseStep> steps_of(const ModelDirectory& model, const Request& request,
                                  const Sampler& sampler) {
  return steps_of(sampler, model.boundary_ratio.value_or(0), guidance_of(model, request));
}

bool JobFacts::guided() const {
  return std::ranges::any_of(guidance, [](double scale) { return guidance_branches(scale) == 2; });
}

std::string JobFacts::tokens() const {
  const std::string rows = std::to_string(reference_rows);
  return std::to_string(sequence().tokens) +
         (reference_rows > 0 ? " + " + rows + " of references" : "");
}

JobFacts facts_of(const OpenModel& model, const Request& resolved) {
  const ModelDirectory& directory = model.directory;
  JobFacts facts{.request = resolved,
                 .sampler = {sampler_of(model, resolved), resolved.steps, resolved.sigmas},
                 .latent = latent_of(directory, resolved),
                 .grid = grid_of(directory, resolved),
                 .guidance = guidance_of(directory, resolved),
                 .steps = {},
                 .chunks = clips_of(directory, resolved),
                 .sound = sound_of(directory, resolved)};
  const Method& method = resolved.method;
  facts.window = facts.latent;
  const int64_t scale = directory.vae_model->traits.spatial_factor;
  for (const GivenPicture& picture : resolved.references) {
    const auto [width, height] = reference_size_of(directory, picture).cut;
    facts.references.push_back({height / scale, width / scale});
  }
  facts.reference_rows = reference_rows_of(directory.expert(0).traits(), facts.references);
  if (method->in_segments()) {
    facts.window[1] = std::get<Queue>(method).frames().count(0);
    facts.segment_prompts = segment_prompts_of(directory, resolved, facts.latent[1]);
  }
  facts.dual_scope = method->dual_scope(facts.sampler);
  facts.patches = method->stale_patches(facts.grid, resolved.steps);
  facts.steps = steps_of(directory, resolved, facts.sampler);
  for (const int step : resolved.cache.skipped.value_or(std::vector<int>{}))
    facts.steps[step].skipped = true;
  if (const auto& patches = facts.patches.pipefusion)
    displace_steps(facts.steps, patches->warmup, patches->resync);
  facts.prompt_rows[0] = model.prompt_rows(resolved.prompt);
  if (facts.guided()) facts.prompt_rows[1] = model.prompt_rows(*resolved.negative_prompt);
  for (const ScheduledPrompt& later : resolved.schedule)
    facts.later_rows.push_back(model.prompt_rows(later.prompt));
  return facts;
}

}  // namespace weft
