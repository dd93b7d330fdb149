#include "apps/live/face/gestures.h"

#include <array>

#include "kernels/philox.h"

namespace weft {

Gestures::Gestures(uint64_t seed) : seed_(seed), wait_(1 + below(20)) {}

int Gestures::below(uint64_t n) {
  constexpr uint32_t kStream = 1;  // the last word of the noise's counters is 0
  const PhiloxCounter words =
      philox4x32_10({drawn_++, 0, 0, kStream}, {uint32_t(seed_), uint32_t(seed_ >> 32)});
  return int(words[0] * n >> 32);
}

Gesture Gestures::next(SessionState state) {
  constexpr std::array kGazes = {-1, 0, 0, 1};
  Gesture out;
  const bool stopped = before_ == SessionState::kSpeaking && state != SessionState::kSpeaking;
  if (before_ && (wait_ == 0 || stopped)) {
    out.lids = 1;
    wait_ = 8 + below(20);
  } else if (wait_ > 0) {
    --wait_;
  }
  if (state != SessionState::kIdle) {
    hold_ = 0;
  } else {
    if (hold_ == 0) {
      hold_ = 4 + below(7);
      gaze_ = kGazes[size_t(below(4))];
    }
    --hold_;
    out.gaze = float(gaze_);
  }
  before_ = state;
  return out;
}

}  // namespace weft
