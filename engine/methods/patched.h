#pragma once
// Patched: what the methods have in common whose patches of tokens see others as they were in the
// step before.
#include "engine/methods/any_method.h"

namespace weft {

// Jobs of fewer steps change too much from one to the next for displaced patches.
inline constexpr int kFewestDisplaced = 9;

struct Patched : AnyMethod {
  // The tokens are cut into `patches`. The first `warmup` steps see present patches.
  std::optional<int64_t> patches{}, warmup{};
  std::optional<PatchSplit> split{};

  bool operator==(const Patched&) const = default;
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

}  // namespace weft
