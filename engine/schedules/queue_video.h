#pragma once
// QueueVideo: the blocks of a video of the block queue, with their frames and their noise.
#include <algorithm>
#include <array>

#include "engine/job/job_facts.h"

namespace weft {

class QueueVideo {
 public:
  explicit QueueVideo(const JobFacts& facts);

  // The latent frames of the video that a block makes. The last block may make more of them.
  Range frames(int block) const;
  // Those that are decoded when a turn begins, of a queue with so many steps.
  int64_t decoded(int turn, int steps) const { return frames(std::max(0, turn - steps)).begin; }
  // Fills in the noise that a block begins with, [C, n, H, W] f32.
  void fill_noise(int block, const TensorView& noise) const { noise_.fill(block, noise); }

 private:
  const int64_t latent_frames_;
  const BlockFrames block_frames_;
  const NoisePool noise_;
};

}  // namespace weft
