#pragma once
// Measures of a long video that need no other video: seams where blocks of frames meet, and the
// drift of its colours.
#include <array>
#include <span>
#include <vector>

#include "io/media/frame.h"

namespace weft {

// The mean absolute difference, in levels of 0 to 255, between each frame and the one before it;
// that of frame i is at i - 1.
std::vector<double> frame_changes(std::span<const Frame> frames);

// The mean change of the first frames of blocks, of the first frames of the other latent frames,
// and of all frames but the first of blocks. The decoder makes some frames at a time, which may
// differ more from those before them than from each other, so that a seam is seen against
// at_latents.
struct Seams {
  double at_borders = 0, at_latents = 0, inside = 0;
};
// `borders`: the first frame of every block but block 0. Latent frame 0 is one frame, any other
// `latent_frames`.
Seams seams_of(std::span<const double> changes, std::span<const int64_t> borders,
               int64_t latent_frames);

// Red, green and blue.
struct ChannelStatistics {
  std::array<double, 3> mean{}, deviation{};
};
ChannelStatistics channel_statistics(std::span<const Frame> frames);

// For each channel, the greatest distance of any block's mean and standard deviation from those of
// block 0.
ChannelStatistics drift_of(std::span<const Frame> frames, std::span<const int64_t> borders);

}  // namespace weft
