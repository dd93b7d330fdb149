#include "engine/methods/step_cache.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/methods/any_method.h"
#include "io/legal.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(StepCacheKind::kCount)> kCacheNames{
    "none", "teacache", "first-block"};
constexpr const char* kLegalThreshold = "0 ... 1000";

double value_at(std::span<const double> polynomial, double x) {
  double value = 0;
  for (const double coefficient : polynomial) value = value * x + coefficient;
  return std::max(value, 0.0);
}

}  // namespace

std::string_view to_string(StepCacheKind kind) { return kCacheNames[static_cast<size_t>(kind)]; }

std::string to_string(const StepCache& cache) {
  std::string text(to_string(cache.kind));
  if (cache.kind == StepCacheKind::kNone) return text;
  return text + ":" + shortest(cache.threshold);
}

StepCache parse_step_cache(const std::string& text, const std::string& label) {
  const size_t colon = text.find(':');
  const auto found = std::ranges::find(kCacheNames, text.substr(0, colon));
  const bool none = found == kCacheNames.begin();
  if (found == kCacheNames.end() || none != (colon == std::string::npos))
    throw Error(ErrorKind::kUsage,
                label + " is '" + text +
                    "', legal: none, teacache:THRESHOLD or first-block:THRESHOLD with a threshold "
                    "of " +
                    kLegalThreshold);
  StepCache cache{.kind = static_cast<StepCacheKind>(found - kCacheNames.begin())};
  if (!none)
    cache.threshold = GivenText{text.substr(colon + 1), label + " is '" + text + "': its threshold",
                                kLegalThreshold}
                          .number();
  return cache;
}

std::vector<int> parse_skipped_steps(const std::string& text, const std::string& label) {
  std::vector<int> steps;
  for (const std::string& part : split(text, ',')) {
    const GivenText step{part, label, "1 ... 999"};
    steps.push_back(static_cast<int>(step.whole_number()));
    if (steps.size() > 1 && steps[steps.size() - 2] >= steps.back())
      step.refuse("rising numbers of steps");
  }
  return steps;
}

std::vector<double> embedding_changes(std::span<const EmbeddedStep> steps) {
  std::vector<double> changes(steps.size());
  for (size_t k = 1; k < steps.size(); ++k) {
    const auto &now = steps[k].embedding, &before = steps[k - 1].embedding;
    if (steps[k].model != steps[k - 1].model) continue;
    double change = 0, size = 0;
    for (size_t i = 0; i < now.size(); ++i) {
      change += std::abs(double{now[i]} - before[i]);
      size += std::abs(double{before[i]});
    }
    changes[k] = size > 0 ? change / size : 0;
  }
  return changes;
}

std::vector<int> teacache_skips(std::span<const EmbeddedStep> steps,
                                std::span<const double> polynomial, double threshold) {
  const std::vector<double> changes = embedding_changes(steps);
  std::vector<int> skips;
  double sum = 0;
  for (size_t k = 1; k + 1 < steps.size(); ++k) {
    const bool begins = steps[k].model != steps[k - 1].model;
    sum = begins ? 0 : sum + value_at(polynomial, changes[k]);
    if (!begins && sum < threshold)
      skips.push_back(static_cast<int>(k));
    else
      sum = 0;
  }
  return skips;
}

}  // namespace weft
