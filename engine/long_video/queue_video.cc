#include "engine/long_video/queue_video.h"

#include <algorithm>

namespace weft {
namespace {

std::array<int64_t, 4> with_frames(std::array<int64_t, 4> latent, int64_t frames) {
  latent[1] = frames;
  return latent;
}

}  // namespace

QueueVideo::QueueVideo(const Request& request, const std::array<int64_t, 4>& latent,
                       const VaeTraits& vae)
    : request_(request),
      latent_(latent),
      vae_(vae),
      block_frames_(std::get<Queue>(request.method).frames()),
      blocks_(std::get<Queue>(request.method).blocks(latent[1])),
      noise_(request.noise, request.rng, request.seed,
             with_frames(latent, block_frames_.first(blocks_)), block_frames_) {}

std::array<int64_t, 4> QueueVideo::window() const {
  return with_frames(latent_, block_frames_.count(0));
}

Range QueueVideo::frames(int block) const {
  const int64_t first = block_frames_.first(block);
  return {first, std::min(first + block_frames_.count(block), latent_[1])};
}

int QueueVideo::prompt(int block) const {
  const int64_t first = block_frames_.first(block);
  const double begins = first ? double(vae_.frames(first)) / request_.fps : 0;
  const auto later = std::ranges::find_if(
      request_.schedule, [&](const ScheduledPrompt& each) { return each.seconds > begins; });
  return static_cast<int>(later - request_.schedule.begin());
}

}  // namespace weft
