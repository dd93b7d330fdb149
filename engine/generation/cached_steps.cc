#include "engine/generation/cached_steps.h"

namespace weft {
namespace {

// The first step of an expert has nothing to reuse.
void check_experts(std::span<const DenoiseStep> steps, const std::vector<int>& skipped) {
  for (const int step : skipped)
    if (step < 1 || steps[step].model != steps[step - 1].model)
      throw Error(ErrorKind::kUsage, "skipped_steps has step " + std::to_string(step) +
                                         " counted from 0, which is the first of its expert; "
                                         "legal: other steps");
}

std::vector<EmbeddedStep> embedded_steps(const OpenModel& model, const Sampler& sampler,
                                         std::span<const DenoiseStep> steps) {
  std::vector<EmbeddedStep> out;
  for (const DenoiseStep& step : steps) out.push_back({.model = step.model});
  for (int expert = 0; expert < model.directory.experts(); ++expert) {
    const auto vectors = model.directory.expert(expert).time_vectors(*model.expert_files[expert],
                                                                     sampler.timesteps());
    for (size_t i = 0; i < vectors.size(); ++i)
      if (out[i].model == expert) out[i].embedding = vectors[i];
  }
  return out;
}

}  // namespace

void decide_skips(const OpenModel& model, const Sampler& sampler, Request& request) {
  validate_cache(request, model.directory.defaults);
  StepCache& cache = request.cache;
  const std::vector<DenoiseStep> steps = steps_of(model.directory, request, sampler);
  if (cache.skipped) return check_experts(steps, *cache.skipped);
  if (cache.kind != StepCacheKind::kTeaCache) return;
  cache.skipped = teacache_skips(embedded_steps(model, sampler, steps),
                                 model.directory.defaults.teacache, cache.threshold);
}

Request before_run(Request request) {
  if (request.cache.kind == StepCacheKind::kFirstBlock) request.cache.skipped.reset();
  return request;
}

void report_skips(const OpenModel& model, const JobFacts& facts, RunResult& result) {
  const StepCache& cache = result.request.cache;
  if (cache.kind == StepCacheKind::kNone) return;
  for (const double change : embedding_changes(embedded_steps(model, facts.sampler, facts.steps)))
    result.cached.push_back({.embedding_change = change});
  for (const int step : *cache.skipped) result.cached[step].skipped = true;
}

void report_cached(const OpenModel& model, const JobFacts& facts, const Denoiser& denoiser,
                   RunResult& result) {
  if (denoiser.changes().empty()) return;
  result.request.cache.skipped = denoiser.skipped();
  report_skips(model, facts, result);
  for (size_t step = 0; step < result.cached.size(); ++step) {
    CachedStep& cached = result.cached[step];
    cached.output_change = denoiser.changes()[step].relative();
    if (const Change& error = denoiser.errors()[step]; cached.skipped && error.size > 0)
      cached.error = error.relative();
  }
}

}  // namespace weft
