#pragma once
// Gestures: where a face looks and when it blinks. Both are part of the signal that the model
// follows, so the stream's seed decides them, and not the noise.
#include <cstdint>
#include <optional>

#include "apps/live/face/session_timeline.h"

namespace weft {

struct Gesture {
  float lids = 0;  // 1: they shut and open again
  float gaze = 0;  // -1 left, 0 ahead, 1 right
  bool operator==(const Gesture&) const = default;
};

// A face blinks every 9 to 28 latent frames (1.4 to 4.5 s of 4 pictures at 25 fps), and when it has
// stopped to speak. It looks around while it is idle, 4 to 10 latent frames each way.
class Gestures {
 public:
  explicit Gestures(uint64_t seed);
  // Those of the next latent frame of a face in `state`.
  Gesture next(SessionState state);
  // The next latent frame has none before it: it does not blink.
  void restart() { before_.reset(); }

 private:
  // A random number in [0, n).
  int below(uint64_t n);

  const uint64_t seed_;
  uint32_t drawn_ = 0;
  int wait_, hold_ = 0;  // latent frames until the next blink, and of this gaze
  int gaze_ = 0;
  std::optional<SessionState> before_;
};

}  // namespace weft
