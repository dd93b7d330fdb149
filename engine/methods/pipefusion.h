#pragma once
// Pipefusion: patches go through the pipeline stages one after the other. They see those that
// follow as they were in the step before, and those before them as they are (PipeFusion,
// arXiv 2405.14430; parallel/methods/patches/pipefusion.h).
#include "engine/methods/displaced.h"

namespace weft {

struct Pipefusion final : Patched {
  bool operator==(const Pipefusion&) const = default;
  const char* name() const override { return "pipefusion"; }
  std::string resolve(const MethodFacts& facts) override;
  MethodLimit limit(const TokenGrid& grid, bool joint) const override;
  StalePatches stale_patches(const TokenGrid& grid, int steps) const override;
};

}  // namespace weft
