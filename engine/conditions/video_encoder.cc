#include "engine/conditions/video_encoder.h"

#include <string>

#include "engine/parts/seams.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

VideoEncoder::VideoEncoder(Stream& stream, Arena& arena, const RankPlacement& placement,
                           const VaeTraits& traits, const std::array<int64_t, 4>& latent)
    : stream_(stream),
      arena_(arena),
      placement_(placement),
      scale_(traits.spatial_factor),
      shape_(latent) {}

Range VideoEncoder::rows() const {
  const Range band = placement_.band(shape_[2]);
  return {band.begin * scale_, band.end * scale_};
}

Tensor VideoEncoder::encode_rows(const Vae& vae, const char* what, const Fill& fill,
                                 const std::function<void()>& next) {
  const auto [channels, frames, height, width] = shape_;
  const Range band = placement_.band(height);
  BandSeams seams(placement_, height);
  VaeEncoder encoder(vae, band.size(), width);
  Tensor mean(DType::kF32, {channels, frames, band.size(), width}, stream_.device());
  int64_t first = 0;  // picture of the chunk
  for (int64_t chunk = 0; chunk < frames; ++chunk) {
    const Arena::Scope scope(arena_);
    const int64_t count = encoder.next_frames();
    const TensorView pictures =
        arena_.alloc(DType::kF32, {count, 3, band.size() * scale_, width * scale_});
    fill(first, pictures);
    Context context = seams.context(stream_, arena_,
                                    {.segment = 1, .micro = static_cast<int>(chunk % (1 << 16))});
    encoder.encode_chunk(context, pictures, mean.view().select(1, chunk));
    first += count;
    next();
  }
  seams.finish();
  mean = on_host(stream_, std::move(mean));
  if (!is_dry_run(stream_)) vae.normalize(mean, mean);
  mean = on_device(stream_, std::move(mean));
  if (first_non_finite(stream_, mean) >= 0)
    throw Error(ErrorKind::kNonFinite, std::string("NaN or infinity in encode_image, ") + what +
                                           ". Check the weights with weft inspect");
  return mean;
}

// Every rank that has rows sends them to all others.
Tensor VideoEncoder::join(Tensor own) {
  if (placement_.alone()) return own;
  const auto [channels, frames, height, width] = shape_;
  Tensor whole(DType::kF32, shape_, stream_.device());
  for (int rank = 0; rank < placement_.ranks(); ++rank) {
    const Range band = placement_.band_of(rank, height);
    if (band.size() == 0) continue;
    Tensor other;
    if (rank != placement_.rank())
      other = Tensor(DType::kF32, {channels, frames, band.size(), width}, stream_.device());
    const TensorView rows = other ? other.view() : own.view();
    const Tag tag{.kind = Payload::kLatent, .pass = {.micro = rank}, .topic = Topic::kPictures};
    placement_.communicator().broadcast(stream_, tag, rows, rank);
    copy(stream_, rows, whole.view().slice(2, band.begin, band.size()));
  }
  stream_.sync();
  return whole;
}

}  // namespace weft
