#pragma once
// AutoencoderKL, the VAE of pictures (Rombach et al. 2022, arXiv 2112.10752, section 3.1), in the
// form of FLUX.1 and Z-Image.
#include <memory>
#include <string>
#include <vector>

#include "models/autoencoder_kl/layers.h"
#include "models/vae.h"
#include "parallel/context.h"

namespace weft {

struct KlVaeConfig {
  std::vector<int64_t> channels{128, 256, 512, 512};  // per level, from the pixels inwards
  int64_t latent_channels = 16, in_channels = 3, out_channels = 3;
  int64_t resnets = 2;  // per level of the encoder; the decoder has one more
  int64_t groups = 32;
  bool mid_attention = true, quant_conv = true, post_quant_conv = true;
  float scaling_factor = 0.18215f, shift_factor = 0;

  int64_t spatial_factor() const { return int64_t{1} << (channels.size() - 1); }
  VaeTraits traits() const {
    return {.channels = latent_channels, .spatial_factor = spatial_factor(), .max_frames = 1};
  }

  // Reads a diffusers vae/config.json. Error(kModel) names the field, its value and what is legal.
  static KlVaeConfig from_json_file(const std::string& path);
};

// Every tensor of encoder and decoder, with diffusers names.
std::vector<TensorSpec> kl_vae_tensors(const KlVaeConfig& config);

class KlVae final : public Vae {
 public:
  // Checks the whole file, but packs only `parts`. `dtype`, f32 or bf16, is the compute dtype. The
  // file may be closed afterwards.
  static KlVae load(const TensorFile& file, const KlVaeConfig& config, Stream& stream, DType dtype,
                    VaeParts parts = VaeParts::kBoth);

  const KlVaeConfig& config() const { return config_; }
  const VaeTraits& traits() const override { return traits_; }
  size_t bytes() const override;
  // out = latents / scaling_factor + shift_factor.
  void denormalize(const TensorView& latents, const TensorView& out) const override;
  // The Context's reducer sums over the bands where a rank has a band of the rows.
  std::unique_ptr<VaeDecoder> decoder(int64_t h, int64_t w) const override;
  std::unique_ptr<VaeEncoder> encoder(int64_t h, int64_t w) const override;

 private:
  KlVaeConfig config_;
  VaeTraits traits_;
  DType dtype_ = DType::kF32;
  Device device_;
  VaeNetwork encoder_, decoder_;
};

std::unique_ptr<VaeModel> make_kl_vae_model(const KlVaeConfig& config);

}  // namespace weft
