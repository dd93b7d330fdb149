#include "engine/generation/cached_steps.h"

namespace weft {
namespace {

std::vector<EmbeddedStep> embedded_steps(const Components& parts, const Sampler& sampler,
                                         const Request& request) {
  std::vector<double> guidance;
  for (int model = 0; model < parts.experts(); ++model)
    guidance.push_back(guidance_of(request, model));
  std::vector<EmbeddedStep> out;
  for (const auto& step : steps_of(sampler, parts.directory().boundary_ratio.value_or(0), guidance))
    out.push_back({.model = step.model});
  for (int model = 0; model < parts.experts(); ++model) {
    const auto vectors = parts.expert_model(model).time_vectors(*parts.model()->expert_files[model],
                                                                sampler.timesteps());
    for (size_t i = 0; i < vectors.size(); ++i)
      if (out[i].model == model) out[i].embedding = vectors[i];
  }
  return out;
}

}  // namespace

void decide_skips(const Components& parts, const Sampler& sampler, Request& request) {
  validate_cache(request, parts.directory().defaults);
  StepCache& cache = request.cache;
  if (cache.kind == StepCacheKind::kNone || cache.skipped) return;
  cache.skipped = teacache_skips(embedded_steps(parts, sampler, request),
                                 parts.directory().defaults.teacache, cache.threshold);
}

void mark_audited(DenoisePlanConfig& config, int every) {
  int skipped = 0;
  for (auto& step : config.steps)
    step.audited = step.skipped && every > 0 && ++skipped % every == 0;
}

std::vector<CachedStep> cached_steps(const Components& parts, const Sampler& sampler,
                                     const Request& request, const Denoiser& denoiser) {
  if (denoiser.changes().empty()) return {};
  std::vector<CachedStep> steps;
  for (const double change : embedding_changes(embedded_steps(parts, sampler, request)))
    steps.push_back(
        {.embedding_change = change, .output_change = denoiser.changes()[steps.size()].relative()});
  for (const int step : *request.cache.skipped) {
    steps[step].skipped = true;
    if (const Change& error = denoiser.errors()[step]; error.size > 0)
      steps[step].error = error.relative();
  }
  return steps;
}

}  // namespace weft
