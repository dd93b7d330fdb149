#pragma once
// Patched: what the methods of displaced patches have in common. Distrifusion and Pcpp are two of
// them.
#include "engine/methods/any_method.h"

namespace weft {

// Jobs of fewer steps change too much from one to the next for displaced patches.
inline constexpr int kFewestDisplaced = 9;

// Patches of tokens see others as they were in the step before.
struct Patched : AnyMethod {
  // The tokens are cut into `patches`. The first `warmup` steps see present patches.
  std::optional<int64_t> patches{}, warmup{};
  std::optional<PatchSplit> split{};

  bool operator==(const Patched&) const = default;
  std::vector<MethodNumber> numbers() override;
  std::string resolve(const MethodFacts& facts) override;
  bool has_old_patches() const override { return true; }
  std::string refuse(const MethodJob& job) const override;
  std::pair<std::string, std::string> refuse_cache(const StepCache& cache) const override;
  std::string why_not_between_steps(const StepCache& cache) const override;
  bool goes_on_after(int steps) const override { return steps % *resync == 0; }
  std::string remark(int steps) const override;

 protected:
  int64_t most_patches(const TokenGrid& grid) const;
  std::vector<int64_t> tokens_of_patches(const TokenGrid& grid) const;
};

// Patches see all others (DistriFusion, arXiv 2402.19481).
struct Distrifusion : Patched {
  std::optional<WireCode> code{};

  bool operator==(const Distrifusion&) const = default;
  const char* name() const override { return "distrifusion"; }
  std::vector<MethodNumber> numbers() override;
  std::optional<int64_t>* open_patches() override { return patches ? nullptr : &patches; }
  std::string resolve(const MethodFacts& facts) override;
  MethodLimit limit(const TokenGrid& grid, bool joint) const override {
    return {joint ? SplitRule::kPatchEach : SplitRule::kPatches, *patches};
  }
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
