#include "apps/generate/cache_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

}  // namespace

nlohmann::json cache_json(const RunResult& result) {
  nlohmann::json steps = nlohmann::json::array();
  for (const CachedStep& step : result.cached) {
    steps.push_back({{"skipped", step.skipped},
                     {"embedding_change", step.embedding_change},
                     {"output_change", step.output_change}});
    if (step.error) steps.back()["error"] = *step.error;
  }
  return {{"setting", to_string(result.request.cache)},
          {"skipped", std::ranges::count(result.cached, true, &CachedStep::skipped)},
          {"steps", steps}};
}

// The output of a computed step behind skipped ones shows what they missed together.
std::string cache_text(const RunResult& result) {
  const auto& steps = result.cached;
  std::string text = to_string(result.request.cache) + ", " +
                     std::to_string(std::ranges::count(steps, true, &CachedStep::skipped)) +
                     " of " + std::to_string(steps.size()) + " steps skipped";
  double sum = 0, most = 0;
  int count = 0;
  for (size_t i = 1; i < steps.size(); ++i)
    if (steps[i - 1].skipped && !steps[i].skipped) {
      sum += steps[i].output_change;
      most = std::max(most, steps[i].output_change);
      ++count;
    }
  if (count > 0)
    text += "; behind them the output changed by " + percent(sum / count) + " in the mean, " +
            percent(most) + " at most";
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].error)
      text += "\n        step " + std::to_string(i + 1) + " skipped, relative error " +
              percent(*steps[i].error);
  return text;
}

}  // namespace weft
