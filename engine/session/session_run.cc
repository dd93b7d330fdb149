#include "engine/session/session_run.h"

#include <atomic>

namespace weft {

void run_session(StreamEngine& engine, const std::string& caption, Session& session) {
  const bool goes_round = engine.plan().layout[Axis::kLayers] > 1;
  std::atomic<int64_t> delivered = 0;
  const auto next = [&](int64_t number) -> StreamSignal {
    const bool waits = !goes_round || delivered == number;
    std::optional<SignalBlock> block = waits ? session.next_block() : session.try_block();
    if (!block) return {.frames = 0, .last = waits};
    return {.frames = block->frames, .rows = std::move(block->rows)};
  };
  const auto take = [&](StreamPictures&& pictures) {
    session.deliver(pictures.block.number, std::move(pictures.pictures));
    ++delivered;
  };
  try {
    engine.run(caption, next, take);
  } catch (...) {
    session.fail(std::current_exception());
  }
}

}  // namespace weft
