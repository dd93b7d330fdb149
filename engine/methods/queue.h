#pragma once
// Queue: segments of frames that are denoised one step apart (DualParal, arXiv 2505.21070;
// parallel/schedule/segment_queue.h).
#include "engine/methods/any_method.h"
#include "engine/sampling/noise_pool.h"

namespace weft {

// The facts of a job that its queue should suit.
struct QueueFacts {
  int steps = 0, segments = 0;
  int stages = 1;              // ranks of the layers axis
  int64_t trained_frames = 0;  // latent frames that the model was trained on; 0: unknown
};

struct Queue final : AnyMethod {
  // Latent frames of a segment (P, from 1 on) and of its context on either side (C, 0 to P). Both
  // are multiples of the latent frames per token. A forward has P + C frames and sees the keys of
  // P + 2 C, which should not be more than the model was trained on.
  std::optional<int64_t> segment{}, context{};

  bool operator==(const Queue&) const = default;
  const char* name() const override { return "queue"; }
  std::vector<MethodNumber> numbers() override {
    return {{"block", "1 ... 4096", &segment}, {"context", "0 ... 4096", &context}};
  }
  std::string resolve(const MethodFacts& facts) override;
  bool in_segments() const override { return true; }
  bool long_videos() const override { return true; }
  bool takes_joint_text() const override { return false; }
  // Throws Error(kUsage) that names the number, its value and the legal ones.
  std::string refuse(const MethodJob& job) const override;
  std::pair<std::string, std::string> refuse_cache(const StepCache& cache) const override;
  std::string why_not_between_steps(const StepCache& cache) const override;
  MethodLimit limit(const TokenGrid& grid, bool joint) const override {
    return {SplitRule::kBlocks};
  }

  SegmentFrames frames() const { return {*segment, *context}; }
  // The segments of a video of so many latent frames. The last one may have more frames than
  // needed.
  int segments(int64_t latent_frames) const;
  // The latent frames of the longest video: tags number segments and turns with 16 bits.
  int64_t most_latents() const { return frames().first(60000); }
  // Says, a line each, what is legal but slow or outside of what the model was trained on.
  std::vector<std::string> warnings(const QueueFacts& facts) const;
};

}  // namespace weft
