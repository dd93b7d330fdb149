#pragma once
// Distrifusion and Pcpp: displaced patches, which see others as they were in the step before.
#include "engine/methods/patched.h"

namespace weft {

// Patches see all others (DistriFusion, arXiv 2402.19481).
struct Distrifusion : Patched {
  std::optional<WireCode> code{};

  bool operator==(const Distrifusion&) const = default;
  const char* name() const override { return "distrifusion"; }
  std::vector<MethodNumber> numbers() override;
  std::optional<int64_t>* open_patches() override { return patches ? nullptr : &patches; }
  std::string resolve(const MethodFacts& facts) override;
  MethodLimit limit(const TokenGrid& grid, bool joint) const override;
  StalePatches stale_patches(const TokenGrid& grid, int steps) const override;
};

// Patches see the nearest rows of their neighbours (PCPP, arXiv 2412.02962): the share `near` in
// the first displaced step, `last_near` in the last one, and in between what lies on the line
// between them.
struct Pcpp final : Distrifusion {
  std::optional<double> near{}, last_near{};

  bool operator==(const Pcpp&) const = default;
  const char* name() const override { return "pcpp"; }
  std::vector<MethodNumber> numbers() override;
  std::string resolve(const MethodFacts& facts) override;
  StalePatches stale_patches(const TokenGrid& grid, int steps) const override;
};

}  // namespace weft
