#pragma once
// QueueVideo: the blocks of the video that a request asks of the block queue, with their frames,
// noise and prompts.
#include <algorithm>
#include <array>

#include "engine/generation/request.h"
#include "models/vae.h"

namespace weft {

class QueueVideo {
 public:
  // `latent` [C, F, H, W] is that of the whole video.
  QueueVideo(const Request& request, const std::array<int64_t, 4>& latent, const VaeTraits& vae);

  int blocks() const { return blocks_; }
  std::array<int64_t, 4> window() const;  // the latent of a forward
  // The latent frames of the video that a block makes. The last block may make more of them.
  Range frames(int block) const;
  // Those that are decoded when a turn begins, of a queue with so many steps.
  int64_t decoded(int turn, int steps) const { return frames(std::max(0, turn - steps)).begin; }
  // The prompt that a block shows: 0 is Request::prompt, i is Request::schedule[i - 1].
  int prompt(int block) const;
  // Fills in the noise that a block begins with, [C, n, H, W] f32.
  void fill_noise(int block, const TensorView& noise) const { noise_.fill(block, noise); }

 private:
  const Request& request_;
  const std::array<int64_t, 4> latent_;
  const VaeTraits& vae_;
  const BlockFrames block_frames_;
  const int blocks_;
  const NoisePool noise_;
};

}  // namespace weft
