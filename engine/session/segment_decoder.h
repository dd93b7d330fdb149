#pragma once
// SegmentDecoder: makes pictures of a stream's segments on the rank that decodes.
#include <array>
#include <optional>

#include "engine/decoding/video_decoder.h"
#include "engine/parts/components.h"
#include "engine/session/stream_pictures.h"
#include "io/media/video.h"
#include "kernels/arena.h"

namespace weft {

class SegmentDecoder {
 public:
  // `shape` is that of a segment. Where the stream shows a picture, the decoder has seen the first
  // latents of `still` (StillLatents::video) when the first segment comes.
  SegmentDecoder(Stream& stream, Arena& arena, Components& parts,
                 const std::array<int64_t, 4>& shape, const StreamPicture& picture,
                 const TensorView& still);

  StreamPictures decode(const Segment& segment, const TensorView& latent);

 private:
  // Keeps the pictures of a segment.
  struct Pictures final : FrameSink {
    std::vector<Frame> frames;
    void push(const Frame& frame) override { frames.push_back(frame); }
    std::string finish() override { return ""; }
  };

  Stream& stream_;
  const int64_t before_;  // the pictures that are made before the stream
  RankPlacement alone_;
  Pictures pictures_;
  FrameWriter writer_;
  std::optional<VideoDecoder> decoder_;
};

}  // namespace weft
