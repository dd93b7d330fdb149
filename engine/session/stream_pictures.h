#pragma once
// StreamPictures: a segment of a stream as its caller gets it.
#include <functional>
#include <vector>

#include "engine/latents/job.h"
#include "io/media/frame.h"

namespace weft {

struct StreamPictures {
  Segment segment{};
  int64_t first = 0;    // the index of the first picture in the stream
  bool muted = false;   // an interruption came after the segment had begun
  double decode_s = 0;  // the time that decoding took
  std::vector<Frame> pictures{};
};
using TakePictures = std::function<void(StreamPictures&&)>;

}  // namespace weft
