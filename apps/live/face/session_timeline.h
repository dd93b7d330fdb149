#pragma once
// SessionTimeline: the segments of a session in order, each with one state, so that a state changes
// at the border of two segments only.
#include <cstdint>

namespace weft {

// A session is interrupted from the interruption to its next segment, which is a listening one.
enum class SessionState : uint8_t { kIdle, kListening, kSpeaking, kInterrupted };
const char* name_of(SessionState state);

struct SessionSegment {
  int64_t number = 0;       // in the engine's order, without gaps
  int64_t first_frame = 0;  // latent frames before it
  int frames = 0;           // its latent frames
  SessionState state = SessionState::kIdle;
  int epoch = 0;         // interruptions before it
  bool warm_up = false;  // its pictures are not shown
};

class SessionTimeline {
 public:
  // A segment has `segment_frames` latent frames, and the first one of a speech `first_segment`.
  // The first `warm_up` segments are idle.
  SessionTimeline(int segment_frames, int first_segment, int warm_up);

  SessionState state() const { return state_; }  // of the last segment, or kInterrupted
  int epoch() const { return epoch_; }
  bool warming_up() const { return number_ < warm_up_; }
  // The latent frames of the next segment if it has this state.
  int frames_if(SessionState state) const;
  // Begins the next segment.
  SessionSegment begin(SessionState state);
  void interrupt();
  // After an interruption the next segment must be a listening one.
  bool owes_listening() const { return state_ == SessionState::kInterrupted; }
  // Pays what is owed without a segment: a loop of pictures shows the face listening.
  void listen() { state_ = SessionState::kListening; }

 private:
  const int segment_frames_, first_segment_, warm_up_;
  SessionState state_ = SessionState::kIdle;
  int epoch_ = 0;
  int64_t number_ = 0, frame_ = 0;
};

}  // namespace weft
