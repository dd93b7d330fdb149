#include "engine/methods/pipefusion.h"

#include <algorithm>

namespace weft {

std::string Pipefusion::resolve(const MethodFacts& facts) {
  warmup = warmup.value_or(1);
  split = split.value_or(PatchSplit::kRows);
  patches = patches.value_or(std::min<int64_t>(8, most_patches(facts.grid)));
  return Patched::resolve(facts);
}

MethodLimit Pipefusion::limit(const TokenGrid& grid, bool joint) const {
  return {SplitRule::kStagedPatches, std::ranges::min(tokens_of_patches(grid))};
}

StalePatches Pipefusion::stale_patches(const TokenGrid& grid, int steps) const {
  return {.pipefusion = PipeFusion{tokens_of_patches(grid), static_cast<int>(*warmup),
                                   static_cast<int>(resync.value_or(0))}};
}

}  // namespace weft
