#include "apps/live/face/session_timeline.h"

#include "kernels/check.h"

namespace weft {

const char* name_of(SessionState state) {
  constexpr const char* kNames[] = {"idle", "listening", "speaking", "interrupted"};
  return kNames[int(state)];
}

SessionTimeline::SessionTimeline(int segment_frames, int first_segment, int warm_up)
    : segment_frames_(segment_frames), first_segment_(first_segment), warm_up_(warm_up) {
  CHECK(segment_frames > 0 && first_segment > 0 && warm_up >= 0, segment_frames, first_segment,
        warm_up);
}

int SessionTimeline::frames_if(SessionState state) const {
  const bool begins = state == SessionState::kSpeaking && state_ != SessionState::kSpeaking;
  return begins ? first_segment_ : segment_frames_;
}

SessionSegment SessionTimeline::begin(SessionState state) {
  CHECK(state != SessionState::kInterrupted);
  CHECK(!warming_up() || state == SessionState::kIdle, name_of(state));
  CHECK(!owes_listening() || state == SessionState::kListening, name_of(state));
  const SessionSegment segment{number_, frame_, frames_if(state), state, epoch_, warming_up()};
  ++number_;
  frame_ += segment.frames;
  state_ = state;
  return segment;
}

void SessionTimeline::interrupt() {
  ++epoch_;
  if (!warming_up()) state_ = SessionState::kInterrupted;
}

}  // namespace weft
