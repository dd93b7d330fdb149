#pragma once
// StepCache: steps that are skipped because the model's output hardly changes. A skipped step adds
// again what the blocks added in the last computed step. This changes the result, so the setting is
// a fact of the job, and sidecars record it together with the steps that were skipped.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class StepCacheKind : uint8_t {
  kNone,
  kTeaCache,    // by the change of the timestep's embedding (arXiv 2411.19108), before the run
  kFirstBlock,  // by the change of what the first block adds (ParaAttention), while it runs
  kCount
};
std::string_view to_string(StepCacheKind kind);

struct StepCache {
  StepCacheKind kind = StepCacheKind::kNone;
  double threshold = 0;
  // In rising order; unset until Generator::resolve decides, or the run where it does. A record
  // states them, so that a replay skips the same steps.
  std::optional<std::vector<int>> skipped{};

  bool operator==(const StepCache&) const = default;
};

std::string to_string(const StepCache& cache);  // "teacache:0.1"; the skipped steps are left out
// The inverse. Error(kUsage) that begins with `label` and names the fault and the legal values.
StepCache parse_step_cache(const std::string& text, const std::string& label);
// Reads "3,4,6".
std::vector<int> parse_skipped_steps(const std::string& text, const std::string& label);

// A step as TeaCache sees it: its expert, and the vector that the expert's time MLP makes of its
// timestep.
struct EmbeddedStep {
  int model = 0;
  std::vector<float> embedding{};
};
// The relative L1 change from the step before, for every step. It is 0 for the first of an expert.
std::vector<double> embedding_changes(std::span<const EmbeddedStep> steps);
// The steps that TeaCache skips. `polynomial` turns a change of the embedding into one of the
// output; the highest power comes first, and negative values count as 0. The changes are added up
// since the last computed step; a step is skipped while the sum is below the threshold. The first
// step of every expert and the last step of all are always computed.
std::vector<int> teacache_skips(std::span<const EmbeddedStep> steps,
                                std::span<const double> polynomial, double threshold);

}  // namespace weft
