#include "engine/session/session_timeline.h"

#include "kernels/check.h"

namespace weft {

const char* name_of(SessionState state) {
  constexpr const char* kNames[] = {"idle", "listening", "speaking", "interrupted"};
  return kNames[int(state)];
}

SessionTimeline::SessionTimeline(int block_frames, int first_block, int warm_up)
    : block_frames_(block_frames), first_block_(first_block), warm_up_(warm_up) {
  CHECK(block_frames > 0 && first_block > 0 && warm_up >= 0, block_frames, first_block, warm_up);
}

int SessionTimeline::frames_if(SessionState state) const {
  const bool begins = state == SessionState::kSpeaking && state_ != SessionState::kSpeaking;
  return begins ? first_block_ : block_frames_;
}

SessionBlock SessionTimeline::begin(SessionState state) {
  CHECK(state != SessionState::kInterrupted);
  CHECK(!warming_up() || state == SessionState::kIdle, name_of(state));
  CHECK(!owes_listening() || state == SessionState::kListening, name_of(state));
  const SessionBlock block{number_, frame_, frames_if(state), state, epoch_, warming_up()};
  ++number_;
  frame_ += block.frames;
  state_ = state;
  return block;
}

void SessionTimeline::interrupt() {
  ++epoch_;
  if (!warming_up()) state_ = SessionState::kInterrupted;
}

}  // namespace weft
