#include "models/autoencoder_kl/vae.h"

namespace weft {

namespace {

bool of_decoder(const TensorSpec& tensor) {
  return tensor.name.starts_with("decoder.") || tensor.name.starts_with("post_quant_conv.");
}

}  // namespace

std::vector<TensorSpec> kl_vae_tensors(const KlVaeConfig& config) {
  return config.design().tensors();
}

size_t kl_decode_workspace_bytes(const KlVaeConfig& config, int64_t h, int64_t w, DType dtype) {
  const FrameShape in = config.design().decoder_input(h, w);
  return vae_workspace_bytes(config.design().decoder({}), VaeOrder::kGrowing, in, in, dtype, 1);
}

size_t kl_encode_workspace_bytes(const KlVaeConfig& config, int64_t h, int64_t w, DType dtype) {
  const FrameShape in = config.design().encoder_input(h, w, Chunk::kFirst);
  return vae_workspace_bytes(config.design().encoder({}), VaeOrder::kShrinking, in, in, dtype, 1);
}

size_t kl_decode_device_bytes(const KlVaeConfig& config, DType dtype, Bias biases) {
  size_t bytes = 0;
  for (const TensorSpec& tensor : kl_vae_tensors(config)) {
    if (!of_decoder(tensor)) continue;
    const int64_t count = parameter_count({&tensor, 1});
    const bool norm = tensor.name.find("norm") != std::string::npos;
    if (tensor.name.ends_with(".bias") && !norm) continue;  // packed with its convolution
    bytes += norm ? static_cast<size_t>(count) * sizeof(float)
                  : packed_bytes(tensor.shape[0], count / tensor.shape[0], dtype,
                                 WeightFormat::kCompute, biases);
  }
  return bytes;
}

namespace {

class KlVaeModel final : public NetworkVaeModel {
 public:
  explicit KlVaeModel(const KlVaeConfig& config)
      : NetworkVaeModel(config.design()), config_(config) {}

  // Convolutions are packed in the compute dtype. Biases and norms stay f32.
  size_t decoder_bytes(DType dtype) const override {
    size_t total = 0;
    for (const TensorSpec& tensor : kl_vae_tensors(config_))
      if (of_decoder(tensor))
        total += static_cast<size_t>(parameter_count({&tensor, 1})) *
                 size_of(tensor.shape.size() > 1 ? dtype : DType::kF32);
    return total;
  }
  size_t decoder_device_bytes(DType dtype, Bias biases) const override {
    return kl_decode_device_bytes(config_, dtype, biases);
  }
  size_t decode_workspace_bytes(int64_t h, int64_t w, DType dtype, int64_t) const override {
    return kl_decode_workspace_bytes(config_, h, w, dtype);
  }
  size_t decode_state_bytes(int64_t, int64_t, DType) const override { return 0; }
  size_t decode_scratch_bytes(int64_t h, int64_t w, DType dtype, Bias biases, int64_t bands,
                              const DeviceTraits& device) const override {
    return vae_scratch_bytes(config_.design().decoder({}), config_.design().decoder_input(h, w),
                             dtype, biases, bands, device);
  }

 private:
  KlVaeConfig config_;
};

}  // namespace

std::unique_ptr<VaeModel> make_kl_vae_model(const KlVaeConfig& config) {
  return std::make_unique<KlVaeModel>(config);
}

}  // namespace weft
