// Wan's VAE as a VaeModel.
#include "models/wan/vae.h"

namespace weft {

namespace {

class WanVaeModel final : public NetworkVaeModel {
 public:
  explicit WanVaeModel(const WanVaeConfig& config)
      : NetworkVaeModel(config.design()), config_(config) {}

  // Convolutions are packed in the compute dtype. Biases and norms stay f32.
  size_t decoder_bytes(DType dtype) const override {
    size_t total = 0;
    for (const TensorSpec& tensor : wan_vae_tensors(config_)) {
      if (!tensor.name.starts_with("decoder.") && !tensor.name.starts_with("post_quant_conv."))
        continue;
      const bool matrix = tensor.shape.size() > 1 && !tensor.name.ends_with("gamma");
      total += static_cast<size_t>(parameter_count({&tensor, 1})) *
               size_of(matrix ? dtype : DType::kF32);
    }
    return total;
  }
  size_t decoder_device_bytes(DType dtype, Bias biases) const override {
    return vae_decode_device_bytes(config_, dtype, biases);
  }
  size_t decode_workspace_bytes(int64_t h, int64_t w, DType dtype,
                                int64_t latent_frames) const override {
    return vae_decode_workspace_bytes(config_, h, w, dtype, latent_frames);
  }
  size_t decode_state_bytes(int64_t h, int64_t w, DType dtype) const override {
    return vae_decode_state_bytes(config_, h, w, dtype);
  }
  size_t decode_scratch_bytes(int64_t h, int64_t w, DType dtype, Bias biases, int64_t bands,
                              const DeviceTraits& device) const override {
    return vae_decode_scratch_bytes(config_, h, w, dtype, biases, bands, device);
  }

 private:
  WanVaeConfig config_;
};

}  // namespace

std::unique_ptr<VaeModel> make_wan_vae_model(const WanVaeConfig& config) {
  return std::make_unique<WanVaeModel>(config);
}

}  // namespace weft
