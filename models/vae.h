#pragma once
// Vae: turns latents into pictures and back, one latent frame at a time. VaeModel is one that is
// known by its configuration alone.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/vae_network.h"
#include "models/weights.h"

namespace weft {

struct VaeTraits {
  int64_t channels = 0;         // of a latent
  int64_t spatial_factor = 1;   // pixels per latent row and column
  int64_t temporal_factor = 1;  // frames per latent frame but the first, which holds one
  int64_t max_frames = std::numeric_limits<int64_t>::max();
  // A picture depends on its latent frame and on at most so many before it.
  int64_t history = 0;

  int64_t frames(int64_t latent_frames) const { return 1 + (latent_frames - 1) * temporal_factor; }
  // The inverse of frames(). A count that is not 1 + k * temporal_factor throws Error(kUsage) that
  // names the nearest two that are.
  int64_t latent_frames(int64_t frames) const;
};

enum class VaeParts : uint8_t { kDecoder, kEncoder, kBoth };

// Turns a value of the transformer's latents into one of the decoder's, for one channel:
// value / divisor * factor + shift.
struct LatentScale {
  float divisor = 1, factor = 1, shift = 0;
};

// Scales that are tensors of the file, one value per channel: value * sqrt(variance + eps) + mean.
struct StoredScales {
  std::string mean, variance;  // names
  std::string unread{};        // another name that the file may have
  float eps = 0;
};

class Vae;

struct VaeModel {
  VaeTraits traits;
  // Make the networks, which take their tensors from `source`.
  std::function<VaeNetwork(const VaeWeightSource&)> encoder, decoder;
  std::vector<LatentScale> scales;              // one per channel
  std::optional<StoredScales> stored_scales{};  // in place of `scales`
  // A place of the latent is a cell of cell x cell places of the networks' latent. Channel
  // c cell cell + dy cell + dx has the places in row dy and column dx of the cells of channel c.
  int64_t cell = 1;
  int64_t patch = 1;    // a pixel of the networks is a cell of patch x patch pixels
  bool clamps = false;  // cuts decoded frames off at -1 and 1
  // Returns the spelling of a tensor's diffusers name in a file; empty: every file has that name.
  std::function<std::string(const TensorFile& file, const std::string& name)> spelled{};

  std::vector<TensorSpec> tensors() const;  // of encoder and decoder, with diffusers names
  // Makes a Vae as its constructor says.
  std::unique_ptr<Vae> load(Stream& stream, const TensorFile& file, DType dtype,
                            VaeParts parts) const;
  // The shapes of the networks' inputs for a latent of size h x w.
  FrameShape decoder_input(int64_t h, int64_t w) const {
    return {1, h * cell, w * cell, traits.channels / (cell * cell)};
  }
  FrameShape encoder_input(int64_t h, int64_t w, Chunk chunk) const;
};

class Vae {
 public:
  // Checks the whole file, but packs only `parts`. `dtype`, f32 or bf16, is the compute dtype. The
  // file may be closed afterwards.
  Vae(VaeModel model, const TensorFile& file, Stream& stream, DType dtype,
      VaeParts parts = VaeParts::kBoth);

  const VaeTraits& traits() const { return model_.traits; }
  size_t bytes() const;  // packed weights
  // Converts the transformer's latents to those that decoders take, [channels, F, h, w] f32 on the
  // host. `out` may alias `latents`.
  void denormalize(const TensorView& latents, const TensorView& out) const;
  // The inverse, for the mean that encoders give.
  void normalize(const TensorView& mean, const TensorView& out) const;

 private:
  friend class VaeDecoder;
  friend class VaeEncoder;

  VaeModel model_;
  DType dtype_;
  Device device_;
  VaeNetwork encoder_, decoder_;  // empty where they are not loaded
};

// The places of a latent [C, h, w] whose cells are cell x cell places, as [h, cell, w, cell,
// C / (cell cell)]: those of the networks' latent, channels last.
TensorView latent_places(const TensorView& latent, int64_t cell);

// Decodes the rows that this rank has of one video. Its memory holds the frames that later chunks
// need. The Vae must outlive it.
class VaeDecoder {
 public:
  VaeDecoder(const Vae& vae, int64_t h, int64_t w);  // latent size

  int64_t height() const { return state_.output().height * model_.patch; }  // pixels
  int64_t width() const { return state_.output().width * model_.patch; }
  // The frames of the next chunk: 1, then temporal_factor.
  int64_t next_frames() const { return state_.output().frames; }
  // Decodes latent [channels, h, w] f32, de-normalised, to frames [next_frames(), 3, H, W] f32
  // contiguous, in [-1, 1] but for overshoot, which is cut off where frames become pixels.
  void decode_chunk(Context& context, const TensorView& latent, const TensorView& frames);

 private:
  const VaeModel& model_;
  VaeState state_;
};

// Encodes one video. The Vae must outlive it.
class VaeEncoder {
 public:
  VaeEncoder(const Vae& vae, int64_t h, int64_t w);  // latent size

  int64_t next_frames() const { return state_.input().frames; }
  // Encodes frames [next_frames(), 3, H, W] f32 in [-1, 1] to mean [channels, h, w] f32, not
  // normalised.
  void encode_chunk(Context& context, const TensorView& frames, const TensorView& mean);

 private:
  const VaeModel& model_;
  VaeState state_;
};

// Decode and encode whole videos: latents or mean [channels, F, h, w] f32, video [3, frames(F), H,
// W] f32.
void vae_decode(Context& context, const Vae& vae, const TensorView& latents,
                const TensorView& video);
// Throws Error(kUsage) for a frame count or size that no latent has.
void vae_encode(Context& context, const Vae& vae, const TensorView& video, const TensorView& mean);

}  // namespace weft
