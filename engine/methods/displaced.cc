#include "engine/methods/displaced.h"

#include <algorithm>

#include "parallel/partition.h"

namespace weft {

std::vector<MethodNumber> Patched::numbers() {
  return {{"patches", "1 ... 4096", &patches},
          {"warmup", "0 ... 1000", &warmup},
          {"split", "rows|frames", &split},
          {"resync", "1 ... 1000", &resync}};
}

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

std::vector<MethodNumber> Distrifusion::numbers() {
  std::vector<MethodNumber> all = Patched::numbers();
  all.insert(all.end() - 1, {"code", "none|fp8|residual-fp8", &code});
  return all;
}

std::string Distrifusion::resolve(const MethodFacts& facts) {
  warmup = warmup.value_or(4);
  code = code.value_or(WireCode::kNone);
  return Patched::resolve(facts);
}

StalePatches Distrifusion::stale_patches(const TokenGrid& grid, int steps) const {
  return {.displaced = Displaced{.patches = tokens_of_patches(grid),
                                 .warmup = static_cast<int>(*warmup),
                                 .resync = static_cast<int>(resync.value_or(0)),
                                 .steps = steps,
                                 .code = *code}};
}

std::vector<MethodNumber> Pcpp::numbers() {
  std::vector<MethodNumber> all = Distrifusion::numbers();
  all.insert(all.begin() + 1,
             {{"window", "0 ... 1", &near}, {"last_window", "0 ... 1", &last_near}});
  return all;
}

std::string Pcpp::resolve(const MethodFacts& facts) {
  near = near.value_or(0.3);
  last_near = last_near.value_or(*near);
  const std::string fault = Distrifusion::resolve(facts);
  if (!fault.empty() || *last_near <= *near) return fault;
  return " has a window that grows; legal: last_window=0 ... " + shortest(*near);
}

StalePatches Pcpp::stale_patches(const TokenGrid& grid, int steps) const {
  StalePatches out = Distrifusion::stale_patches(grid, steps);
  const int first = out.displaced->warmup, last = std::max(steps - 1, first);
  for (int step = 0; step < steps; ++step) {
    const double share =
        last == first ? 0 : std::clamp(1.0 * (step - first) / (last - first), 0.0, 1.0);
    out.displaced->windows.push_back(*near + share * (*last_near - *near));
  }
  return out;
}

}  // namespace weft
