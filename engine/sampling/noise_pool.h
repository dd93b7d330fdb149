#pragma once
// NoisePool: the noise from which the segments of a long video begin (DualParal, arXiv 2505.21070).
//
// Segment 0 has P + C frames, every other segment P. In the mode `pool` the video has P + C frames
// of noise in all. A template holds their order: segment 0 begins with the template, and every
// later segment k makes a new one of the last C frames of the old template and its first P frames
// in an order of its own; segment k begins with these P frames. So the last C frames of a segment
// and the whole next one are all frames of the pool, each once. In the mode `iid` no frame is used
// twice.
//
// Frame f of the pool, or of the video, is the noise that NoiseField has for latent frame f, so the
// first segment begins as an ordinary generation of P + C frames. The order of segment k depends on
// the seed and on k alone.
#include "engine/sampling/noise.h"

namespace weft {

enum class NoiseMode : uint8_t { kPool, kIid, kCount };
std::string_view to_string(NoiseMode mode);
NoiseMode noise_mode_from_name(std::string_view name);  // Error(kUsage) listing the names

struct SegmentFrames {
  int64_t segment = 0, context = 0;  // P and C, in latent frames; 0 <= C <= P
  int64_t first(int k) const {
    return k ? context + k * segment : 0;
  }  // of a segment, in the video
  int64_t count(int k) const { return k ? segment : segment + context; }
};

class NoisePool {
 public:
  // `shape` [C, F, H, W] is that of the latents of the whole video. `portable` noise does not
  // depend on F, so it may be any for a video without an end.
  NoisePool(NoiseMode mode, Rng rng, uint64_t seed, std::array<int64_t, 4> shape,
            const SegmentFrames& frames);

  // The frames of noise that segment k begins with.
  std::vector<int64_t> frames(int k) const;
  // Fills out [C, frames(k), H, W] f32.
  void fill(int k, const TensorView& out) const;

 private:
  NoiseMode mode_;
  uint64_t seed_;
  SegmentFrames frames_;
  NoiseField field_;
};

}  // namespace weft
