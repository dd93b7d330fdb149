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

Tensor VideoEncoder::join(Tensor own) {
  if (placement_.alone()) return own;
  const auto [channels, frames, height, width] = shape_;
  std::vector<Tensor> parts(placement_.ranks());
  parts[placement_.rank()] = std::move(own);
  std::vector<TensorView> bands;
  for (int rank = 0; rank < placement_.ranks(); ++rank) {
    const std::array<int64_t, 4> shape{channels, frames, placement_.band_of(rank, height).size(),
                                       width};
    if (!parts[rank] && shape[2] > 0) parts[rank] = Tensor(DType::kF32, shape, stream_.device());
    bands.push_back(parts[rank] ? parts[rank].view()
                                : TensorView(nullptr, DType::kF32, shape, stream_.device()));
  }
  const Tag tag{.kind = Payload::kLatent, .topic = Topic::kPictures};
  placement_.communicator().all_gather_v(stream_, tag, bands[placement_.rank()], bands);
  Tensor whole(DType::kF32, shape_, stream_.device());
  for (int rank = 0; rank < placement_.ranks(); ++rank)
    if (const Range band = placement_.band_of(rank, height); band.size() > 0)
      copy(stream_, bands[rank], whole.view().slice(2, band.begin, band.size()));
  stream_.sync();
  return whole;
}

}  // namespace weft
