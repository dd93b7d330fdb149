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

// One chunk needs only the network's own buffers, because the frames belong to the caller.
size_t vae_decode_workspace_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype,
                                  int64_t latent_frames) {
  const FrameShape in = config.design().decoder_input(h, w);
  return vae_workspace_bytes(config.design().decoder({}), VaeOrder::kGrowing, in, in, dtype,
                             latent_frames);
}

size_t vae_decode_state_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype) {
  return vae_state_bytes(config.design().decoder({}), config.design().decoder_input(h, w), dtype);
}

size_t vae_decode_device_bytes(const WanVaeConfig& config, DType dtype, Bias biases) {
  size_t bytes = 0;
  for (const TensorSpec& tensor : wan_vae_tensors(config)) {
    if (!tensor.name.starts_with("decoder.") && !tensor.name.starts_with("post_quant_conv."))
      continue;
    if (tensor.name.ends_with(".bias")) continue;  // packed with its convolution
    const int64_t count = parameter_count({&tensor, 1});
    bytes += tensor.name.ends_with(".weight")
                 ? packed_bytes(tensor.shape[0], count / tensor.shape[0], dtype,
                                WeightFormat::kCompute, biases)
                 : static_cast<size_t>(count) * sizeof(float);
  }
  return bytes;
}

size_t vae_decode_scratch_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype,
                                Bias biases, int64_t bands, const DeviceTraits& device) {
  return vae_scratch_bytes(config.design().decoder({}), config.design().decoder_input(h, w), dtype,
                           biases, bands, device);
}

size_t vae_encode_workspace_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype) {
  return vae_workspace_bytes(config.design().encoder({}), VaeOrder::kShrinking,
                             config.design().encoder_input(h, w, Chunk::kFirst),
                             config.design().encoder_input(h, w, Chunk::kLater), dtype);
}

size_t vae_encode_state_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype) {
  return vae_state_bytes(config.design().encoder({}),
                         config.design().encoder_input(h, w, Chunk::kFirst), dtype);
}

}  // namespace weft
