#include "engine/decoding/video_output.h"

#include <utility>

namespace weft {

VideoOutput::VideoOutput(const Rank& rank, DecoderSettings settings,
                         const VideoReceivers& receivers, const FramesSoFar& before)
    : stream_(rank.stream),
      arena_(rank.arena),
      placement_(rank.placement),
      settings_(std::move(settings)),
      receivers_(receivers) {
  settings_.float_frames = receivers_.tap != nullptr;
  if (placement_.root()) {
    if (receivers_.tap) {
      const int64_t scale = settings_.traits.spatial_factor;
      video_ = Tensor(
          DType::kF32,
          {3,
           settings_.pictures > 0 ? settings_.pictures : settings_.traits.frames(settings_.total),
           settings_.latent[1] * scale, settings_.latent[2] * scale});
      settings_.video = video_;
    }
    settings_.writer = &writer_.emplace(receivers_.sink, before);
    settings_.on_chunk = [this](int64_t chunk, int64_t pictures) {
      receivers_.clock.decoded(static_cast<int>(chunk), pictures_before_ + pictures);
    };
  }
  open_decoder();
}

void VideoOutput::open_decoder() { decoder_.emplace(stream_, arena_, placement_, settings_); }

void VideoOutput::end_part() {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->finish(); });
  pictures_before_ += decoder_->pictures();
  decoder_.reset();
}

void VideoOutput::begin_part(const DecoderSettings& settings) {
  settings_.vae = settings.vae;
  settings_.total = settings.total;
  settings_.shown = settings.shown;
  settings_.on_rows = settings.on_rows;
  settings_.video_begin = pictures_before_;
  alone_ = false;
  open_decoder();
}

void VideoOutput::write(const TensorView& latents, const std::atomic<bool>* stop) {
  if (!std::exchange(alone_, true))
    receivers_.clock.enter(Zone::kDecode, static_cast<int>(settings_.total));
  decoder_->decode(latents, stop);
}

void VideoOutput::push(const TensorView& latents) {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->push(latents); });
}

void VideoOutput::collect() {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->collect(); });
}

void VideoOutput::resume(const TensorView& last, int64_t latent_frames) {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->resume(last, latent_frames); });
}

FramesSoFar VideoOutput::keep() {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->finish(); });
  return writer_ ? writer_->keep() : FramesSoFar{};
}

void VideoOutput::finish(RunResult& result, std::chrono::steady_clock::time_point started) {
  StageClock& clock = receivers_.clock;
  if (decoder_) clock.beside(Zone::kDecode, [&] { decoder_->finish(); });
  if (!writer_) return;
  clock.enter(Zone::kEncodeVideo, 1);
  writer_->finish();
  clock.step(1);
  if (receivers_.sink) {
    clock.enter(Zone::kWrite, 1);
    receivers_.sink->finish();
    clock.step(1);
  }
  result.frames = writer_->frames();
  result.framehash = writer_->hash();
  if (writer_->first_frame_at() != decltype(writer_->first_frame_at()){})
    result.first_frame_seconds =
        std::chrono::duration<double>(writer_->first_frame_at() - started).count();
  if (receivers_.tap) receivers_.tap->tap("video", video_);
}

}  // namespace weft
