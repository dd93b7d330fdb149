#pragma once
// VideoOutput: takes the latents of a job, as a whole or frame by frame, and delivers its frames.
// It joins the decoder, the writer and the sink with the stages' times and progress.
#include <atomic>
#include <chrono>
#include <optional>

#include "engine/decoding/stream_decoder.h"
#include "engine/generation/stages.h"

namespace weft {

// The receivers of the video. Sink and tap may be null.
struct VideoReceivers {
  FrameSink* sink;
  PipelineTap* tap;
  StageClock& clock;
};

class VideoOutput {
 public:
  // A tap receives the whole video, so settings.total must then be known. `settings` has no writer
  // and no functions.
  VideoOutput(Stream& stream, Arena& arena, RankPlacement& placement, DecoderSettings settings,
              const VideoReceivers& receivers);

  // Decodes the next latent frames in a stage of its own (StreamDecoder::decode).
  void write(const TensorView& latents, const std::atomic<bool>* stop);
  // Decodes the next latent frames beside the current stage (StreamDecoder::push, collect).
  void push(const TensorView& latents);
  void collect();
  // Waits until the sink has a whole file, and fills in what `result` says of the frames. `started`
  // is the time at which the job began.
  void finish(RunResult& result, std::chrono::steady_clock::time_point started);

 private:
  const VideoReceivers receivers_;
  const int64_t total_;                // latent frames
  bool alone_ = false;                 // in a stage of its own
  Tensor video_;                       // for the tap
  std::optional<FrameWriter> writer_;  // on the root
  std::optional<StreamDecoder> decoder_;
};

}  // namespace weft
