#include "engine/session/stream_picture.h"

#include "engine/conditions/picture_conditions.h"
#include "engine/conditions/video_encoder.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {

StillLatents still_latents(Stream& stream, Arena& arena, Components& parts,
                           const GivenPicture& picture, PictureFit fit,
                           const std::array<int64_t, 4>& latent) {
  const VaeTraits& vae = parts.vae_model().traits;
  const auto [channels, frames, rows, columns] = latent;
  const int64_t width = columns * vae.spatial_factor, height = rows * vae.spatial_factor;
  const Tensor pixels = is_dry_run(stream) ? Tensor(DType::kF32, {3, height, width})
                                           : clip_picture(picture, fit, width, height);
  RankPlacement alone;
  VideoEncoder encoder(stream, arena, alone, vae,
                       {channels, parts.traits().motion_frames, rows, columns});
  const auto fill = [&](int64_t, const TensorView& video) {
    make_on_host(stream, video, [&](const TensorView& to) {
      Stream host = host_stream(stream);
      for (int64_t i = 0; i < to[0]; ++i) copy(host, pixels, to.select(0, i));
    });
  };
  StillLatents out;
  out.video =
      on_host(stream, encoder.encode_rows(parts.vae_encoder(stream), "the encoded picture", fill));
  parts.done_with_pictures();
  // The encoder is causal in time, so the first latent is that of the picture alone.
  out.picture = Tensor(DType::kF32, {channels, 1, rows, columns});
  Stream host = host_stream(stream);
  copy(host, out.video.view().slice(1, 0, 1), out.picture);
  return out;
}

}  // namespace weft
