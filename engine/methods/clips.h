#pragma once
// Clips: dual-scope attention (Video-Infinity, arXiv 2406.16260): near frames, a few of all.
#include "engine/methods/any_method.h"

namespace weft {

struct Clips final : AnyMethod {
  // A frame sees `window` frames on either side, and `global` frames of the whole video whose
  // positions are remapped to `trained` ones. `bias` is added to the logits of the global frames in
  // steps of at least `global_sigma`, to those of the near frames in the others.
  std::optional<int64_t> window{}, global{}, trained{};
  std::optional<double> bias{}, global_sigma{};
  // The frames of other ranks are as old as `stale` steps. The first `warmup` steps see present
  // ones.
  std::optional<int64_t> stale{}, warmup{};

  bool operator==(const Clips&) const = default;
  const char* name() const override { return "clips"; }
  std::vector<MethodNumber> numbers() override;
  std::string resolve(const MethodFacts& facts) override;
  bool long_videos() const override { return true; }
  bool takes_joint_text() const override { return false; }
  std::string refuse_frames(int64_t frames) const override {
    return weft::refuse(scope(0), frames);
  }
  std::pair<std::string, std::string> refuse_cache(const StepCache& cache) const override;
  std::string why_not_between_steps(const StepCache& cache) const override;
  MethodLimit limit(const TokenGrid& grid, bool joint) const override {
    return {SplitRule::kClips, grid[0]};
  }
  std::optional<DualScope> dual_scope(const Sampler& sampler) const override {
    return scope(sampler.steps_from(*global_sigma));
  }

 private:
  DualScope scope(int global_steps) const;
};

}  // namespace weft
