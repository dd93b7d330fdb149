#pragma once
// Wan's causal video VAE (Wan Team 2025, section 4.1), in the 2.1 form and the form with
// patch_size. It works in chunks of one latent frame. Each causal convolution remembers the last
// frames of its input. The first chunk is a single picture.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/wan/vae_layers.h"
#include "models/weights.h"
#include "parallel/context.h"

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
  int64_t frames(int64_t latent_frames) const {
    return 1 + (latent_frames - 1) * temporal_factor();
  }
  // The inverse of frames(). A count that is not 1 + k * temporal_factor throws Error(kUsage) that
  // names the nearest two that are.
  int64_t latent_frames(int64_t frames) const;

  // Reads a diffusers vae/config.json. Error(kModel) names the field, its value and what is legal.
  static WanVaeConfig from_json_file(const std::string& path);
};

// Every tensor of encoder and decoder, with diffusers names.
std::vector<TensorSpec> wan_vae_tensors(const WanVaeConfig& config);

// The name of a tensor in files with the original layout ("decoder.upsamples.3.resample.1.weight").
std::string wan_vae_original_name(const WanVaeConfig& config, const std::string& name);

// Convert between the VAE's latents and the normalised latents of the DiT, [z, F, h, w] f32 on the
// host. `out` may alias `latents`.
void normalize_latents(const WanVaeConfig& config, const TensorView& latents,
                       const TensorView& out);
void denormalize_latents(const WanVaeConfig& config, const TensorView& latents,
                         const TensorView& out);

enum class VaeParts : uint8_t { kDecoder, kEncoder, kBoth };

class WanVae {
 public:
  // Checks the whole file, but packs only `parts`. Accepts diffusers and original names. `dtype`,
  // f32 or bf16, is the compute dtype. The file may be closed afterwards.
  static WanVae load(const TensorFile& file, const WanVaeConfig& config, Stream& stream,
                     DType dtype, VaeParts parts = VaeParts::kBoth);

  const WanVaeConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  size_t bytes() const;                                   // bytes of packed weights
  const VaeNetwork& encoder() const { return encoder_; }  // empty where not loaded
  const VaeNetwork& decoder() const { return decoder_; }

 private:
  WanVaeConfig config_;
  DType dtype_ = DType::kF32;
  Device device_;
  VaeNetwork encoder_, decoder_;
};

// The memory of a decoder (encoder) of latent size h x w besides its weights. `workspace` is the
// arena bytes of one chunk, `state` the remembered frames. Neither depends on the number of frames,
// except that a single picture (latent_frames 1) needs only the first chunk.
size_t vae_decode_workspace_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype,
                                  int64_t latent_frames = 2);
size_t vae_decode_state_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype);
size_t vae_encode_workspace_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype);
size_t vae_encode_state_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype);
// On a device: the bytes of a decoder's weights, and the largest scratch of an op when the rows are
// split over `bands` ranks.
size_t vae_decode_device_bytes(const WanVaeConfig& config, DType dtype, Bias biases);
size_t vae_decode_scratch_bytes(const WanVaeConfig& config, int64_t h, int64_t w, DType dtype,
                                Bias biases, int64_t bands, const DeviceTraits& device);

// Decodes one video, latent frame by latent frame. `vae` must outlive it.
class WanVaeDecoder {
 public:
  WanVaeDecoder(const WanVae& vae, int64_t h, int64_t w);

  int64_t height() const;  // pixels
  int64_t width() const;
  int64_t next_frames() const;  // frames that the next chunk gives: 1, then temporal_factor
  // Decodes latent [z, h, w] f32, de-normalised, to frames [next_frames(), 3, H, W] f32 contiguous,
  // clamped to [-1, 1].
  void decode_chunk(Context& context, const TensorView& latent, const TensorView& frames);

  void reset() { state_.reset(); }
  VaeState& state() { return state_; }  // the state, to be saved and resumed

 private:
  const WanVae& vae_;
  VaeState state_;
};

// Encodes one video. `vae` must outlive it.
class WanVaeEncoder {
 public:
  WanVaeEncoder(const WanVae& vae, int64_t h, int64_t w);  // latent size

  int64_t next_frames() const;  // frames that the next chunk takes: 1, then temporal_factor
  // Encodes frames [next_frames(), 3, H, W] f32 in [-1, 1] to mean [z, h, w] f32, not normalised.
  void encode_chunk(Context& context, const TensorView& frames, const TensorView& mean);

  void reset() { state_.reset(); }
  VaeState& state() { return state_; }

 private:
  const WanVae& vae_;
  VaeState state_;
};

// Decode and encode whole videos: latents or mean [z, F, h, w] f32, video [3, frames(F), H, W] f32.
void vae_decode(Context& context, const WanVae& vae, const TensorView& latents,
                const TensorView& video);
// Throws Error(kUsage) for a frame count or size that no latent has.
void vae_encode(Context& context, const WanVae& vae, const TensorView& video,
                const TensorView& mean);

}  // namespace weft
