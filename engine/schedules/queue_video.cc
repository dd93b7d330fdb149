#include "engine/schedules/queue_video.h"

#include <algorithm>

namespace weft {
namespace {

std::array<int64_t, 4> with_frames(std::array<int64_t, 4> latent, int64_t frames) {
  latent[1] = frames;
  return latent;
}

}  // namespace

QueueVideo::QueueVideo(const JobFacts& facts)
    : latent_frames_(facts.latent[1]),
      block_frames_(std::get<Queue>(facts.request.method).frames()),
      noise_(facts.request.noise, facts.request.rng, facts.request.seed,
             with_frames(facts.latent, block_frames_.first(facts.blocks())), block_frames_) {}

Range QueueVideo::frames(int block) const {
  const int64_t first = block_frames_.first(block);
  return {first, std::min(first + block_frames_.count(block), latent_frames_)};
}

}  // namespace weft
