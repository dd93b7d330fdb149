#pragma once
// The bytes that the ranks of a stream send, as parallel/schedule/stream_plan.h and
// engine/session/picture_messages.h state them. Tests compare them with what the product counts.
#include <algorithm>

#include "parallel/schedule/stream_plan.h"

namespace weft {

// All ranks of a stream together send this, whose sink stays, and none of whose segments are
// hollow. The signal has so many values per frame of tokens.
struct StreamSent {
  int64_t latent = 0, hidden = 0, control = 0;
};
inline StreamSent stream_sent_bytes(const StreamPlanConfig& stream, int64_t columns) {
  const auto rows_of = [](int64_t bytes, int64_t row) { return (bytes + row - 1) / row; };
  const int64_t groups = stream.layout[Axis::kStep], stages = stream.layout[Axis::kLayers],
                split = stream.layout[Axis::kUlysses];
  const int64_t r = stream.latent_bytes, h = stream.hidden_bytes,
                tokens = stream.segment_frames * stream.frame_tokens,
                word = 16 + 4 * stream.segment_frames * columns;
  const int64_t receivers = (groups - 1) * (1 + (stages > 1)) * split;
  const int64_t permits = std::max(0, stream.segments - stream.credits);
  StreamSent sent;
  sent.latent = receivers * (tokens + rows_of(word, r)) * r +
                (stages > 1 ? (stream.steps - groups) * tokens * r : 0) +
                (stream.decodes_apart ? (tokens + rows_of(16, r)) * r : 0);
  sent.hidden = (stages - 1) * (stream.steps * tokens + groups * rows_of(word, h)) * h;
  sent.latent *= stream.segments;
  sent.hidden *= stream.segments;
  sent.hidden += groups * (stages - 1) * stream.sink_frames * stream.frame_tokens * h;
  const bool one_way = stages > 1 && stream.group(0).size() == 1;
  sent.control = 8 * permits * (receivers + stream.decodes_apart + one_way) +
                 stream.segments * (split - 1) * word;
  return sent;
}

// The rank that decodes sends the first one so many bytes of a segment's pictures.
inline int64_t picture_sent_bytes(int64_t pictures, int64_t width, int64_t height) {
  return pictures * 3 * width * height;
}

}  // namespace weft
