#include "engine/session/segment_decoder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/transfer.h"
#include "parallel/schedule/simulate.h"

namespace weft {
namespace {

double decoding_seconds() {
  using Clock = std::chrono::steady_clock;
  if (is_simulated()) return simulated_seconds();
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

int64_t pictures_before(Components& parts, const StreamPicture& picture) {
  return picture.decoded_latents > 0 ? parts.vae_model().traits.frames(picture.decoded_latents) : 0;
}

}  // namespace

SegmentDecoder::SegmentDecoder(Stream& stream, Arena& arena, Components& parts,
                               const std::array<int64_t, 4>& shape, const StreamPicture& picture,
                               const TensorView& still)
    : stream_(stream), before_(pictures_before(parts, picture)), writer_(&pictures_) {
  const VaeTraits& vae = parts.vae_model().traits;
  DecoderSettings settings{.traits = vae,
                           .vae = &parts.vae(stream),
                           .latent = {shape[0], shape[2], shape[3]},
                           .writer = &writer_};
  settings.shown.begin = before_ + picture.dropped_pictures;
  decoder_.emplace(stream, arena, alone_, settings);
  const int64_t seen = picture.decoded_latents, last = std::min(seen, vae.history);
  if (seen > 0) decoder_->resume(still.slice(1, seen - last, last), seen);
}

StreamPictures SegmentDecoder::decode(const Segment& segment, const TensorView& latent) {
  const double begun_s = decoding_seconds();
  StreamPictures out{.segment = segment, .first = decoder_->pictures() - before_};
  decoder_->push(HostCopy(stream_, latent));
  decoder_->finish();
  writer_.keep();
  out.pictures = std::exchange(pictures_.frames, {});
  out.decode_s = decoding_seconds() - begun_s;
  return out;
}

}  // namespace weft
