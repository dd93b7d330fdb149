#include "models/wan/vae.h"

#include <algorithm>
#include <limits>

namespace weft {

int64_t WanVaeConfig::spatial_factor() const { return patch_size << (dim_mult.size() - 1); }

int64_t WanVaeConfig::temporal_factor() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

// A causal convolution sees two frames before its own, a residual block has two of them, and an
// upsampling in time one. Frames of later levels are shorter.
int64_t WanVaeConfig::history() const {
  constexpr int64_t kMiddle = 2 * 4;  // frames of two residual blocks
  const int64_t factor = temporal_factor(), levels = static_cast<int64_t>(dim_mult.size());
  int64_t pictures = (2 + kMiddle) * factor, frame = factor;  // the length of a frame in pictures
  for (int64_t level = levels - 1; level >= 0; --level) {
    pictures += (num_res_blocks + 1) * 4 * frame;
    if (level == 0 || !temporal_downsample[level - 1]) continue;
    pictures += 2 * frame;
    frame /= 2;
  }
  pictures += 2 * frame;
  return (pictures + factor - 1) / factor;
}

VaeTraits WanVaeConfig::traits() const {
  return {.channels = z_dim,
          .spatial_factor = spatial_factor(),
          .temporal_factor = temporal_factor(),
          .max_frames = pictures ? 1 : std::numeric_limits<int64_t>::max(),
          .history = history()};
}

std::vector<TensorSpec> wan_vae_tensors(const WanVaeConfig& config) {
  return make_wan_vae_model(config).tensors();
}

}  // namespace weft
