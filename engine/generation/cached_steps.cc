#include "engine/generation/cached_steps.h"

namespace weft {
namespace {

// The steps with their experts alone.
std::vector<EmbeddedStep> embedded_models(const Components& parts, const Sampler& sampler,
                                          const Request& request) {
  std::vector<double> guidance;
  for (int model = 0; model < parts.experts(); ++model)
    guidance.push_back(guidance_of(parts.family(), request, model));
  std::vector<EmbeddedStep> out;
  for (const auto& step : steps_of(sampler, parts.directory().boundary_ratio.value_or(0), guidance))
    out.push_back({.model = step.model});
  return out;
}

// The first step of an expert has nothing to reuse.
void check_experts(std::span<const EmbeddedStep> steps, const std::vector<int>& skipped) {
  for (const int step : skipped)
    if (step < 1 || steps[step].model != steps[step - 1].model)
      throw Error(ErrorKind::kUsage, "skipped_steps has step " + std::to_string(step) +
                                         " counted from 0, which is the first of its expert; "
                                         "legal: other steps");
}

std::vector<EmbeddedStep> embedded_steps(const Components& parts, const Sampler& sampler,
                                         const Request& request) {
  std::vector<EmbeddedStep> out = embedded_models(parts, sampler, request);
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
  if (cache.skipped) return check_experts(embedded_models(parts, sampler, request), *cache.skipped);
  if (cache.kind != StepCacheKind::kTeaCache) return;
  cache.skipped = teacache_skips(embedded_steps(parts, sampler, request),
                                 parts.directory().defaults.teacache, cache.threshold);
}

Request before_run(Request request) {
  if (request.cache.kind == StepCacheKind::kFirstBlock) request.cache.skipped.reset();
  return request;
}

void report_skips(const Components& parts, const Sampler& sampler, RunResult& result) {
  const StepCache& cache = result.request.cache;
  if (cache.kind == StepCacheKind::kNone) return;
  for (const double change : embedding_changes(embedded_steps(parts, sampler, result.request)))
    result.cached.push_back({.embedding_change = change});
  for (const int step : *cache.skipped) result.cached[step].skipped = true;
}

void report_cached(const Components& parts, const Sampler& sampler, const Denoiser& denoiser,
                   RunResult& result) {
  if (denoiser.changes().empty()) return;
  result.request.cache.skipped = denoiser.skipped();
  report_skips(parts, sampler, result);
  for (size_t step = 0; step < result.cached.size(); ++step) {
    CachedStep& cached = result.cached[step];
    cached.output_change = denoiser.changes()[step].relative();
    if (const Change& error = denoiser.errors()[step]; cached.skipped && error.size > 0)
      cached.error = error.relative();
  }
}

}  // namespace weft
