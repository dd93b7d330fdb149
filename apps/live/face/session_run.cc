#include "apps/live/face/session_run.h"

#include <array>
#include <atomic>
#include <thread>

namespace weft {

void run_session(StreamEngine& engine, const std::string& caption, Session& session) {
  const bool goes_round = engine.plan().layout[Axis::kLayers] > 1;
  std::atomic<int64_t> delivered = 0, first = 0;  // `first` is the session's number of segment 0
  session.begin_stream();
  const auto next = [&](int64_t number) -> StreamSignal {
    const bool waits = !goes_round || delivered == number;
    std::optional<SignalSegment> segment = waits ? session.next_segment() : session.try_segment();
    if (!segment) return {.frames = 0, .last = waits};
    if (number == 0) first = segment->number;
    if (engine.takes_sound())
      return {.frames = segment->frames, .sound = std::move(segment->sound)};
    return {.frames = segment->frames, .rows = std::move(segment->rows)};
  };
  const auto take = [&](StreamPictures&& pictures) {
    session.deliver(first + pictures.segment.number, std::move(pictures.pictures));
    ++delivered;
  };
  try {
    engine.run(caption, next, take);
  } catch (...) {
    session.fail(std::current_exception());
  }
}

namespace {

// Sends the sound into the session, as one speech.
void feed(Session& session, SoundSource& sound, const std::atomic<bool>& ends) {
  try {
    std::array<float, 1600> piece;
    for (size_t count; !ends && (count = sound.read(piece)) > 0;)
      session.push_sound(std::span(piece).first(count), session.epoch());
    session.close();
  } catch (...) {
    session.fail(std::current_exception());
  }
}

}  // namespace

void play_sound(StreamEngine& engine, const std::string& caption, Session& session,
                SoundSource& sound, const std::function<void(SessionSlot&&)>& take,
                const std::function<bool()>& stops) {
  std::atomic<bool> ends = false;
  std::jthread feeds([&] { feed(session, sound, ends); });
  std::jthread runs([&] { run_session(engine, caption, session); });
  const auto end = [&] {
    ends = true;
    sound.stop();
  };
  try {
    while (std::optional<SessionSlot> slot = session.next()) {
      take(std::move(*slot));
      if (!ends && stops()) end();
    }
  } catch (...) {
    session.fail(std::current_exception());
    end();
    throw;
  }
}

}  // namespace weft
