#pragma once
// Wan's causal video VAE (Wan Team 2025, section 4.1): the 2.1 form, the form with patch_size, and
// the residual form of 2.2. It works in chunks of one latent frame. Each causal convolution
// remembers the last frames of its input. The first chunk is a single picture.
#include <string>
#include <vector>

#include "io/weights/tensor_names.h"
#include "models/vae.h"

namespace weft {

struct WanVaeConfig {
  int64_t base_dim = 96;
  int64_t decoder_base_dim = 96;
  int64_t z_dim = 16;
  std::vector<int64_t> dim_mult{1, 2, 4, 4};
  int64_t num_res_blocks = 2;
  std::vector<bool> temporal_downsample{false, true, true};
  int64_t in_channels = 3, out_channels = 3;  // after folding patch_size x patch_size pixels
  int64_t patch_size = 1;
  bool residual =
      false;  // a shortcut beside every level that resamples (models/wan/vae_residual.h)
  bool pictures = false;  // it is of a model of pictures, which it has no videos from
  // [z_dim]: mean and standard deviation of the DiT's latents. These were published with the 2.1
  // VAE.
  std::vector<float> latents_mean{-0.7571f, -0.7089f, -0.9113f, 0.1075f,  -0.1745f, 0.9653f,
                                  -0.1517f, 1.5508f,  0.4134f,  -0.0715f, 0.5517f,  -0.3632f,
                                  -0.1922f, -0.9497f, 0.2503f,  -0.2921f};
  std::vector<float> latents_std{2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f,
                                 2.6052f, 2.0743f, 3.2687f, 2.1526f, 2.8652f, 1.5579f,
                                 1.6382f, 1.1253f, 2.8251f, 1.9160f};

  int64_t spatial_factor() const;   // pixels per latent row
  int64_t temporal_factor() const;  // frames per latent frame but the first, which holds one
  int64_t history() const;          // latent frames before its own that a picture depends on
  VaeTraits traits() const;

  // Reads a diffusers vae/config.json. Error(kModel) names the field, its value and what is legal.
  static WanVaeConfig from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell. The statistics of the latents are those
  // published with Wan 2.1 or 2.2; a file with another number of latent channels is refused.
  static WanVaeConfig from_tensors(const TensorFile& file);
  // Refuses sizes that do not fit together. Messages begin with `where`.
  void check(const std::string& where) const;
};

std::string to_string(const WanVaeConfig& config);

// Return whether the file holds a Wan VAE, and whether it has the names of the original repository.
bool holds_wan_vae(const TensorNames& names);
bool wan_vae_has_original_names(const TensorNames& names);

// Every tensor of encoder and decoder, with diffusers names.
std::vector<TensorSpec> wan_vae_tensors(const WanVaeConfig& config);

// The name of a tensor in files with the original layout ("decoder.upsamples.3.resample.1.weight").
std::string wan_vae_original_name(const WanVaeConfig& config, const std::string& name);

// Wan's VAE by its configuration. It accepts diffusers and original names.
VaeModel make_wan_vae_model(const WanVaeConfig& config);

}  // namespace weft
