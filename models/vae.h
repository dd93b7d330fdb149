#pragma once
// Vae: turns latents into pictures and back, one latent frame at a time. VaeModel is one that is
// known by its configuration alone.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "models/weights.h"
#include "parallel/context.h"

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

// Decodes the rows that this rank has of one video. Its memory holds the frames that later chunks
// need.
class VaeDecoder {
 public:
  virtual ~VaeDecoder() = default;
  virtual int64_t height() const = 0;  // pixels
  virtual int64_t width() const = 0;
  virtual int64_t next_frames() const = 0;  // frames of the next chunk: 1, then temporal_factor
  // Decodes latent [channels, h, w] f32, de-normalised, to frames [next_frames(), 3, H, W] f32
  // contiguous, in [-1, 1] but for overshoot, which is cut off where frames become pixels.
  virtual void decode_chunk(Context& context, const TensorView& latent,
                            const TensorView& frames) = 0;
};

// Encodes one video.
class VaeEncoder {
 public:
  virtual ~VaeEncoder() = default;
  virtual int64_t next_frames() const = 0;
  // Encodes frames [next_frames(), 3, H, W] f32 in [-1, 1] to mean [channels, h, w] f32, not
  // normalised.
  virtual void encode_chunk(Context& context, const TensorView& frames, const TensorView& mean) = 0;
};

class Vae {
 public:
  virtual ~Vae() = default;
  virtual const VaeTraits& traits() const = 0;
  virtual size_t bytes() const = 0;  // packed weights
  // Converts the transformer's latents to those that decoders take, [channels, F, h, w] f32 on the
  // host. `out` may alias `latents`.
  virtual void denormalize(const TensorView& latents, const TensorView& out) const = 0;
  // The inverse, for the mean that encoders give.
  virtual void normalize(const TensorView& mean, const TensorView& out) const = 0;
  // A decoder and an encoder of latents of size h x w. The Vae must outlive them.
  virtual std::unique_ptr<VaeDecoder> decoder(int64_t h, int64_t w) const = 0;
  virtual std::unique_ptr<VaeEncoder> encoder(int64_t h, int64_t w) const = 0;
};

class VaeModel {
 public:
  virtual ~VaeModel() = default;

  const VaeTraits& traits() const { return traits_; }
  virtual std::vector<TensorSpec> tensors() const = 0;  // of encoder and decoder

  // Checks the whole file, but packs only `parts`. `dtype`, f32 or bf16, is the compute dtype. The
  // file may be closed afterwards.
  virtual std::unique_ptr<Vae> load(Stream& stream, const TensorFile& file, DType dtype,
                                    VaeParts parts) const = 0;

 protected:
  explicit VaeModel(const VaeTraits& traits) : traits_(traits) {}

 private:
  VaeTraits traits_;
};

// Decode and encode whole videos: latents or mean [channels, F, h, w] f32, video [3, frames(F), H,
// W] f32.
void vae_decode(Context& context, const Vae& vae, const TensorView& latents,
                const TensorView& video);
// Throws Error(kUsage) for a frame count or size that no latent has.
void vae_encode(Context& context, const Vae& vae, const TensorView& video, const TensorView& mean);

}  // namespace weft
