#pragma once
// MediaClock: when the pictures of a live stream are due, and what is shown if one is not there.
//
// One slot is one picture and its sound. Slot k is due at E + k / rate, where the epoch E is the
// moment at which the first one was ready, plus a delay that hides jitter. A slot without its
// picture repeats the last one (a freeze), on the same grid, for as long as the grace allows; then
// the clock waits. A picture that is more than `reanchor` late moves E by its lateness, once, and
// is flagged as a discontinuity. Where time runs backwards the clock begins anew (a reset).
#include <chrono>
#include <cstdint>

#include "io/media_time.h"

namespace weft {

// Since any fixed moment.
using MediaInstant = std::chrono::nanoseconds;

struct MediaClockConfig {
  MediaRate pictures{25, 1};
  MediaInstant delay = std::chrono::milliseconds(200);
  MediaInstant grace = std::chrono::milliseconds(480);  // as a rule one segment
  MediaInstant reanchor = std::chrono::milliseconds(500);
};

class MediaClock {
 public:
  enum class Action : uint8_t { kWait, kSend, kFreeze };
  struct Decision {
    Action action = Action::kWait;
    // For kWait: the clock has nothing to say before it; max() if only a picture helps.
    MediaInstant wake = MediaInstant::max();
    bool discontinuity = false;  // the epoch moved, or the clock began anew
  };
  struct Counts {
    int64_t sent = 0, frozen = 0;
    int64_t late = 0;  // sent slots that were later than the grace
    int64_t reanchors = 0, resets = 0;
    MediaInstant max_lateness{0};  // of a slot that was sent, before the epoch moved
  };

  explicit MediaClock(const MediaClockConfig& config);

  bool started() const { return started_; }
  void start(MediaInstant now);
  int64_t next_slot() const { return slot_; }
  MediaInstant due(int64_t slot) const;
  // Decides about the next slot, whose picture is `ready` or not, and moves on after it unless the
  // answer is kWait.
  Decision poll(MediaInstant now, bool ready);
  const Counts& counts() const { return counts_; }

 private:
  const MediaClockConfig config_;
  bool started_ = false;
  MediaInstant epoch_{0}, last_poll_{0};
  int64_t slot_ = 0;
  int64_t frozen_in_a_row_ = 0;
  Counts counts_;
};

}  // namespace weft
