#pragma once
// SpeechQueue: the bounded queue of what a session is to do: stretches of speech, and rests of a
// given length. Its memory is fixed.
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "apps/live/face/session_timeline.h"

namespace weft {

// One thread at a time may use it (Session guards it).
class SpeechQueue {
 public:
  // Holds at most `capacity` samples, with the samples of rests.
  explicit SpeechQueue(size_t capacity);

  // Appends the samples that fit, to the open speech or to a new one, and returns their number.
  size_t offer(std::span<const float> samples);
  // Ends the open speech. What is offered next is another one. Returns true if the last of its
  // samples had been taken before. Does nothing if none is open.
  bool end_turn();
  // Appends a rest: so many samples of silence that are idle or listening. Returns how many fit.
  // The rest stays open if not all do, and the next call with this state goes on with it: what is
  // taken must not depend on when there was room.
  size_t rest(SessionState state, size_t samples);
  void drop();  // everything

  struct Head {
    SessionState state;
    size_t samples;  // that are there
    bool ended;      // no more will come
  };
  // The first stretch. It is nullopt if there is none; an open one may have no samples left.
  std::optional<Head> head() const;
  // Takes samples of the first stretch and fills up with silence. Returns whether the stretch is
  // over.
  bool take(std::span<float> samples);

  size_t size() const { return size_; }
  size_t room() const { return ring_.size() - size_; }

 private:
  struct Stretch {
    SessionState state;
    size_t samples;
    bool ended;
  };
  std::vector<float> ring_;
  size_t first_ = 0;  // of the speech in the ring
  size_t speech_ = 0, size_ = 0;
  std::deque<Stretch> stretches_;
};

}  // namespace weft
