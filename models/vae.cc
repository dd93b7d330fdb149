#include "models/vae.h"

#include <algorithm>

#include "kernels/copy.h"

namespace weft {

namespace {

// Returns `count` frames of a video [3, F, H, W] as a chunk [F, 3, H, W].
TensorView frames_first(const TensorView& video, int64_t begin, int64_t count) {
  return video.slice(1, begin, count).permute({1, 0, 2, 3});
}

std::string nearest_two(int64_t value, int64_t step, int64_t offset) {
  const int64_t below = std::max<int64_t>(value - offset, 0) / step * step + offset;
  return std::to_string(below) + " and " + std::to_string(below + step);
}

}  // namespace

int64_t VaeTraits::latent_frames(int64_t frames) const {
  if (frames < 1 || (frames - 1) % temporal_factor != 0)
    throw Error(ErrorKind::kUsage, std::to_string(frames) + " frames: the VAE takes 1 + " +
                                       std::to_string(temporal_factor) + "k; the nearest are " +
                                       nearest_two(frames, temporal_factor, 1));
  return 1 + (frames - 1) / temporal_factor;
}

void vae_decode(Context& context, const Vae& vae, const TensorView& latents,
                const TensorView& video) {
  CHECK(latents.rank == 4 && video.rank == 4 && video[1] == vae.traits().frames(latents[1]),
        latents.to_string_shape(), video.to_string_shape());
  const std::unique_ptr<VaeDecoder> decoder = vae.decoder(latents[2], latents[3]);
  for (int64_t i = 0, frame = 0; i < latents[1]; ++i) {
    const Arena::Scope scope(context.arena);
    const int64_t count = decoder->next_frames();
    const TensorView frames =
        context.arena.alloc(DType::kF32, {count, video[0], decoder->height(), decoder->width()});
    decoder->decode_chunk(context, latents.select(1, i), frames);
    copy(context.stream, frames, frames_first(video, frame, count));
    frame += count;
  }
}

void vae_encode(Context& context, const Vae& vae, const TensorView& video, const TensorView& mean) {
  const VaeTraits& traits = vae.traits();
  const int64_t latent_frames = traits.latent_frames(video[1]);
  const int64_t factor = traits.spatial_factor;
  for (const int64_t size : {video[2], video[3]})
    if (size < factor || size % factor != 0)
      throw Error(ErrorKind::kUsage, "size " + std::to_string(video[3]) + "x" +
                                         std::to_string(video[2]) + ": " + std::to_string(size) +
                                         " is no multiple of " + std::to_string(factor) +
                                         "; the nearest are " + nearest_two(size, factor, 0));
  CHECK(mean.rank == 4 && mean[1] == latent_frames, mean.to_string_shape());
  const std::unique_ptr<VaeEncoder> encoder = vae.encoder(video[2] / factor, video[3] / factor);
  for (int64_t i = 0, frame = 0; i < latent_frames; ++i) {
    const Arena::Scope scope(context.arena);
    const int64_t count = encoder->next_frames();
    const TensorView frames =
        context.arena.alloc(DType::kF32, {count, video[0], video[2], video[3]});
    copy(context.stream, frames_first(video, frame, count), frames);
    encoder->encode_chunk(context, frames, mean.select(1, i));
    frame += count;
  }
}

}  // namespace weft
