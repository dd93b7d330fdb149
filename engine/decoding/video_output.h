#pragma once
// VideoOutput: takes the latents of a job, as a whole or frame by frame, and delivers its frames.
// It joins the decoder, the writer and the sink with the stages' times and progress.
#include <atomic>
#include <chrono>
#include <optional>

#include "engine/decoding/video_decoder.h"
#include "engine/job/stages.h"
#include "engine/parts/rank.h"

namespace weft {

// The receivers of the video. Sink and tap may be null.
struct VideoReceivers {
  FrameSink* sink;
  PipelineTap* tap;
  StageClock& clock;
};

class VideoOutput {
 public:
  // A tap receives the whole video, so settings.total or settings.pictures must then be known.
  // `settings` has no writer and no on_chunk. `before` is what the receivers have of an earlier
  // run.
  VideoOutput(const Rank& rank, DecoderSettings settings, const VideoReceivers& receivers,
              const FramesSoFar& before = {});

  // Ends what has been pushed, and releases the decoder with it: the next latent frames are
  // another video's, whose pictures follow. No push comes before begin_part().
  void end_part();
  // Begins it with the `total`, `shown` and `on_rows` of these settings and their VAE.
  void begin_part(const DecoderSettings& settings);

  // Decodes the next latent frames in a stage of its own (VideoDecoder::decode).
  void write(const TensorView& latents, const std::atomic<bool>* stop);
  // Decodes the next latent frames beside the current stage (VideoDecoder::push, collect).
  void push(const TensorView& latents);
  void collect();
  // Goes on after the latent frames of an earlier run (VideoDecoder::resume).
  void resume(const TensorView& last, int64_t latent_frames);
  // Lets the sink keep the frames of all pushes. The root returns what it has.
  FramesSoFar keep();
  // Waits until the sink has a whole file, and fills in what `result` says of the frames. `started`
  // is the time at which the job began.
  void finish(RunResult& result, std::chrono::steady_clock::time_point started);

 private:
  void open_decoder();

  Stream& stream_;
  Arena& arena_;
  const RankPlacement& placement_;
  DecoderSettings settings_;
  const VideoReceivers receivers_;
  int64_t pictures_before_ = 0;        // of the parts that have ended
  bool alone_ = false;                 // in a stage of its own
  Tensor video_;                       // for the tap
  std::optional<FrameWriter> writer_;  // on the root
  std::optional<VideoDecoder> decoder_;
};

}  // namespace weft
