#include "tests/bench/measure/frame_drift.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/check.h"

namespace weft {

std::vector<double> frame_changes(std::span<const Frame> frames) {
  std::vector<double> changes;
  for (size_t i = 1; i < frames.size(); ++i) {
    const std::vector<uint8_t>&now = frames[i].rgb, &before = frames[i - 1].rgb;
    CHECK(now.size() == before.size());
    int64_t sum = 0;
    for (size_t k = 0; k < now.size(); ++k) sum += std::abs(now[k] - before[k]);
    changes.push_back(static_cast<double>(sum) / static_cast<double>(now.size()));
  }
  return changes;
}

Seams seams_of(std::span<const double> changes, std::span<const int64_t> borders,
               int64_t latent_frames) {
  struct Mean {
    double sum = 0, count = 0;
    void add(double value) { sum += value, ++count; }
    operator double() const { return sum / std::max(count, 1.0); }
  } at_borders, at_latents, inside;
  for (size_t i = 0; i < changes.size(); ++i) {
    const bool border = std::ranges::find(borders, static_cast<int64_t>(i) + 1) != borders.end();
    (border ? at_borders : inside).add(changes[i]);
    if (!border && i % latent_frames == 0) at_latents.add(changes[i]);
  }
  return {at_borders, at_latents, inside};
}

ChannelStatistics channel_statistics(std::span<const Frame> frames) {
  std::array<int64_t, 3> sum{}, squares{};
  int64_t count = 0;
  for (const Frame& frame : frames) {
    count += int64_t{frame.width} * frame.height;
    for (size_t i = 0; i < frame.rgb.size(); ++i) {
      const int64_t level = frame.rgb[i];
      sum[i % 3] += level;
      squares[i % 3] += level * level;
    }
  }
  ChannelStatistics out;
  for (int c = 0; c < 3; ++c) {
    out.mean[c] = static_cast<double>(sum[c]) / static_cast<double>(count);
    const double mean_square = static_cast<double>(squares[c]) / static_cast<double>(count);
    out.deviation[c] = std::sqrt(std::max(0.0, mean_square - out.mean[c] * out.mean[c]));
  }
  return out;
}

ChannelStatistics drift_of(std::span<const Frame> frames, std::span<const int64_t> borders) {
  ChannelStatistics first, most;
  for (size_t block = 0; block <= borders.size(); ++block) {
    const size_t begin = block ? borders[block - 1] : 0;
    const size_t end = block < borders.size() ? borders[block] : frames.size();
    const ChannelStatistics here = channel_statistics(frames.subspan(begin, end - begin));
    if (block == 0) first = here;
    for (int c = 0; c < 3; ++c) {
      most.mean[c] = std::max(most.mean[c], std::abs(here.mean[c] - first.mean[c]));
      most.deviation[c] =
          std::max(most.deviation[c], std::abs(here.deviation[c] - first.deviation[c]));
    }
  }
  return most;
}

}  // namespace weft
