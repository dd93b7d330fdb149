#include "apps/live/face/media_clock.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

namespace {
constexpr int64_t kNanoseconds = 1'000'000'000;
}

MediaClock::MediaClock(const MediaClockConfig& config) : config_(config) {
  CHECK(config.pictures.num > 0 && config.pictures.den > 0, config.pictures.num);
}

void MediaClock::start(MediaInstant now) {
  CHECK(!started_);
  started_ = true;
  epoch_ = now + config_.delay;
  last_poll_ = now;
}

MediaInstant MediaClock::due(int64_t slot) const {
  return epoch_ + MediaInstant(ticks_at(slot, config_.pictures, kNanoseconds));
}

MediaClock::Decision MediaClock::poll(MediaInstant now, bool ready) {
  CHECK(started_);
  Decision decision;
  if (now < last_poll_) {
    epoch_ += now - due(slot_);
    ++counts_.resets;
    decision.discontinuity = true;
  }
  last_poll_ = now;
  const MediaInstant at = due(slot_);
  if (now < at) {
    decision.wake = at;
    return decision;
  }
  if (!ready) {
    if (ticks_at(frozen_in_a_row_ + 1, config_.pictures, kNanoseconds) > config_.grace.count())
      return decision;
    decision.action = Action::kFreeze;
    ++frozen_in_a_row_;
    ++counts_.frozen;
    ++slot_;
    return decision;
  }
  const MediaInstant lateness = now - at;
  counts_.max_lateness = std::max(counts_.max_lateness, lateness);
  counts_.late += lateness > config_.grace;
  if (lateness > config_.reanchor) {
    epoch_ += lateness;
    ++counts_.reanchors;
    decision.discontinuity = true;
  }
  decision.action = Action::kSend;
  frozen_in_a_row_ = 0;
  ++counts_.sent;
  ++slot_;
  return decision;
}

}  // namespace weft
