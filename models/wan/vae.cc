#include "models/wan/vae.h"

#include <algorithm>

namespace weft {

int64_t WanVaeConfig::spatial_factor() const { return patch_size << (dim_mult.size() - 1); }

int64_t WanVaeConfig::temporal_factor() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

VaeTraits WanVaeConfig::traits() const {
  return {
      .channels = z_dim, .spatial_factor = spatial_factor(), .temporal_factor = temporal_factor()};
}

std::vector<TensorSpec> wan_vae_tensors(const WanVaeConfig& config) {
  return config.design().tensors();
}

std::unique_ptr<VaeModel> make_wan_vae_model(const WanVaeConfig& config) {
  return std::make_unique<NetworkVaeModel>(config.design());
}

}  // namespace weft
