#pragma once
// AutoencoderKL, the VAE of pictures (Rombach et al. 2022, arXiv 2112.10752, section 3.1), in the
// form of FLUX.1 and Z-Image.
#include <string>
#include <vector>

#include "io/weights/tensor_names.h"
#include "models/vae.h"

namespace weft {

struct KlVaeConfig {
  std::vector<int64_t> channels{128, 256, 512, 512};  // per level, from the pixels inwards
  int64_t latent_channels = 16, in_channels = 3, out_channels = 3;
  int64_t resnets = 2;  // per level of the encoder; the decoder has one more
  int64_t groups = 32;
  bool mid_attention = true, quant_conv = true, post_quant_conv = true;
  float scaling_factor = 0.18215f, shift_factor = 0;

  std::vector<int64_t> decoder_channels{};  // empty: `channels`

  const std::vector<int64_t>& decoder_widths() const {
    return decoder_channels.empty() ? channels : decoder_channels;
  }
  int64_t spatial_factor() const { return int64_t{1} << (channels.size() - 1); }
  VaeTraits traits() const {
    return {.channels = latent_channels, .spatial_factor = spatial_factor(), .max_frames = 1};
  }

  // Reads a diffusers vae/config.json. Error(kModel) names the field, its value and what is legal.
  static KlVaeConfig from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell. The scale of the latents is that of
  // FLUX.1's VAE; a file with another number of latent channels is refused.
  static KlVaeConfig from_tensors(const TensorFile& file);
};

// The VAE of FLUX.2. Its latents are packed: a place has the values of 2 x 2 places, and they are
// normalised by statistics that the file stores.
struct PackedKlVaeConfig : KlVaeConfig {
  int64_t cell = 2;
  float statistics_eps = 1e-4f;  // beside the variance

  VaeTraits traits() const {
    return {.channels = latent_channels * cell * cell,
            .spatial_factor = spatial_factor() * cell,
            .max_frames = 1};
  }
  static PackedKlVaeConfig from_json_file(const std::string& path);
  static PackedKlVaeConfig from_tensors(const TensorFile& file);
};

std::string to_string(const KlVaeConfig& config);
std::string to_string(const PackedKlVaeConfig& config);

// The name of a tensor in files with the names of Black Forest Labs' repository
// ("decoder.up.3.block.0.conv1.weight"), and in the given file.
std::string kl_vae_original_name(const std::string& name, int64_t levels);
std::string kl_vae_name(const TensorFile& file, const std::string& name, int64_t levels);

// Return whether the file holds an AutoencoderKL, with either names, or one with packed latents.
bool holds_kl_vae(const TensorNames& names);
bool holds_packed_kl_vae(const TensorNames& names);

// Every tensor of encoder and decoder, with diffusers names.
std::vector<TensorSpec> kl_vae_tensors(const KlVaeConfig& config);

// A Context's reducer must sum over the bands where a rank has a band of the rows.
VaeModel make_kl_vae_model(const KlVaeConfig& config);
VaeModel make_packed_kl_vae_model(const PackedKlVaeConfig& config);

}  // namespace weft
