#include "engine/methods/patched.h"

#include "parallel/partition.h"

namespace weft {

std::string Patched::resolve(const MethodFacts& facts) {
  split = split.value_or(PatchSplit::kRows);
  const int64_t most = most_patches(facts.grid);
  if (patches && *patches <= most) return "";
  return " has " + (patches ? std::to_string(*patches) : "no number of") +
         " patches; legal here: patches=1 ... " + std::to_string(most);
}

std::string Patched::refuse(const MethodJob& job) const {
  if (job.steps >= kFewestDisplaced) return "";
  return "a job of " + std::to_string(job.steps) +
         " steps changes too much from one step to the next for patches that are a step old; "
         "legal: " +
         std::to_string(kFewestDisplaced) + " steps or more, or an exact method: full";
}

std::pair<std::string, std::string> Patched::refuse_cache(const StepCache& cache) const {
  return {", which reads the keys of the step before, and a skipped step makes none", "none"};
}

std::string Patched::why_not_between_steps(const StepCache& cache) const {
  if (resync) return "";
  return "the method is " + std::string(name()) +
         ", and checkpoints do not hold the patches of the step before (--resync-every K keeps one "
         "every K steps)";
}

std::string Patched::remark(int steps) const {
  if (*warmup < steps) return "";
  return "warmup=" + std::to_string(*warmup) + " of " + std::to_string(steps) +
         " steps: every step is exact, as with full";
}

int64_t Patched::most_patches(const TokenGrid& grid) const {
  return *split == PatchSplit::kFrames ? grid[0] : grid[0] * grid[1];
}

std::vector<int64_t> Patched::tokens_of_patches(const TokenGrid& grid) const {
  const int64_t units = most_patches(grid), size = grid[0] * grid[1] * grid[2] / units;
  const auto count = static_cast<int>(*patches);
  std::vector<int64_t> tokens;
  for (int patch = 0; patch < count; ++patch)
    tokens.push_back(partition(units, count, patch).size() * size);
  return tokens;
}

}  // namespace weft
