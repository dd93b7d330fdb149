#include "engine/methods/clips.h"

#include <algorithm>

namespace weft {

std::vector<MethodNumber> Clips::numbers() {
  return {{"window", "0 ... 4096", &window},          {"global", "0 ... 4096", &global},
          {"trained", "1 ... 4096", &trained},        {"bias", "0 ... 1000", &bias},
          {"global_sigma", "0 ... 2", &global_sigma}, {"stale", "0 ... 1", &stale},
          {"warmup", "0 ... 1000", &warmup}};
}

std::string Clips::resolve(const MethodFacts& facts) {
  window = window.value_or(std::min((facts.trained_latents - 1) / 2, facts.latents - 1));
  global = global.value_or(std::min<int64_t>(4, facts.latents));
  trained = trained.value_or(facts.trained_latents);
  bias = bias.value_or(10);
  // Video-Infinity with its defaults favours the global frames in the first 7 of 30 steps.
  const double uniform = 0.77;
  global_sigma =
      global_sigma.value_or(facts.flow_shift * uniform / (1 + (facts.flow_shift - 1) * uniform));
  stale = stale.value_or(0);
  warmup = warmup.value_or(*stale ? 2 : 0);
  const std::string why = refuse_frames(facts.latents);
  return why.empty() ? "" : ": " + why;
}

std::pair<std::string, std::string> Clips::refuse_cache(const StepCache& cache) const {
  if (*stale == 0) return {};
  return {", which reads the frames of the step before, and a skipped step makes none",
          "none, or stale=0"};
}

std::string Clips::why_not_between_steps(const StepCache& cache) const {
  if (*stale == 0) return "";
  return "the method has stale=1, and checkpoints do not hold the frames of the step before";
}

DualScope Clips::scope(int global_steps) const {
  return {.window = *window,
          .global = *global,
          .trained = *trained,
          .bias = *bias,
          .global_steps = global_steps,
          .stale = static_cast<int>(*stale),
          .warmup = static_cast<int>(*warmup)};
}

}  // namespace weft
