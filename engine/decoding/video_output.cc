#include "engine/decoding/video_output.h"

#include <utility>

namespace weft {

VideoOutput::VideoOutput(Stream& stream, Arena& arena, RankPlacement& placement,
                         DecoderSettings settings, const VideoReceivers& receivers)
    : receivers_(receivers), total_(settings.total) {
  settings.float_frames = receivers_.tap != nullptr;
  if (placement.root()) {
    if (receivers_.tap) {
      const int64_t scale = settings.traits.spatial_factor;
      video_ = Tensor(DType::kF32, {3, settings.traits.frames(settings.total),
                                    settings.latent[1] * scale, settings.latent[2] * scale});
      settings.video = video_;
    }
    settings.writer = &writer_.emplace(receivers_.sink);
    settings.on_chunk = [&clock = receivers_.clock](int64_t chunk, int64_t pictures) {
      clock.decoded(static_cast<int>(chunk), pictures);
    };
  }
  decoder_.emplace(stream, arena, placement, settings);
}

void VideoOutput::write(const TensorView& latents, const std::atomic<bool>* stop) {
  if (!std::exchange(alone_, true)) receivers_.clock.enter(Zone::kDecode, static_cast<int>(total_));
  decoder_->decode(latents, stop);
}

void VideoOutput::push(const TensorView& latents) {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->push(latents); });
}

void VideoOutput::collect() {
  receivers_.clock.beside(Zone::kDecode, [&] { decoder_->collect(); });
}

void VideoOutput::finish(RunResult& result, std::chrono::steady_clock::time_point started) {
  StageClock& clock = receivers_.clock;
  clock.beside(Zone::kDecode, [&] { decoder_->finish(); });
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
  if (result.frames > 0)
    result.first_frame_seconds =
        std::chrono::duration<double>(writer_->first_frame_at() - started).count();
  if (receivers_.tap) receivers_.tap->tap("video", video_);
}

}  // namespace weft
