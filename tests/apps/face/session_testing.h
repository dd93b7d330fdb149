#pragma once
// Shared by the tests of sessions: sound, an engine whose pictures show the signal and all that the
// engine saw before, and a session on a simulated clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "apps/live/face/session.h"

namespace weft::test {

inline constexpr size_t kSlotSamples = SoundBands::kHop;

inline std::vector<float> speech(size_t samples, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> sound(samples);
  for (size_t i = 0; i < samples; ++i)
    sound[i] =
        0.4f * std::sin(float(i) * 0.05f) * std::sin(float(i) * 0.0007f) + 0.1f * uniform(random);
  return sound;
}

// The pictures of a segment show, for each row, its bits, and a number that depends on all rows of
// this engine so far, as the keys and values of a model would.
class FakeEngine {
 public:
  static constexpr int kWidth = 64;  // pixels, in one line

  explicit FakeEngine(int first_pictures = 4, int pictures = 4)
      : missing_(pictures - first_pictures) {}

  std::vector<Frame> run(const SignalSegment& segment) {
    std::vector<Frame> frames;
    const size_t rows = segment.rows.size() / Session::kSignalColumns;
    for (size_t k = 0; k < rows; ++k) {
      const float* row = segment.rows.data() + k * Session::kSignalColumns;
      for (int c = 0; c < Session::kSignalColumns; ++c) {
        uint32_t bits;
        std::memcpy(&bits, row + c, 4);
        history_ = (history_ ^ bits) * 0x100000001b3;
      }
      Frame frame(kWidth, 1);
      std::memcpy(frame.rgb.data(), row, 4 * Session::kSignalColumns);
      std::memcpy(frame.rgb.data() + 4 * Session::kSignalColumns, &history_, 8);
      frames.push_back(std::move(frame));
    }
    if (segment.first_frame == 0) frames.erase(frames.begin(), frames.begin() + missing_);
    segments.push_back(segment);
    return frames;
  }

  std::vector<SignalSegment> segments;  // all that it ran

 private:
  const int missing_;
  uint64_t history_ = 0xcbf29ce484222325;
};

inline std::vector<float> row_of(const Frame& frame) {
  std::vector<float> row(Session::kSignalColumns);
  std::memcpy(row.data(), frame.rgb.data(), 4 * row.size());
  return row;
}

inline bool has_flag(const Frame& frame, SessionState state) {
  return row_of(frame)[SoundBands::kBands + size_t(state)] == 1;
}

// Expects that each picture shows the bands of the sound that is handed out with it: the sound and
// the pictures are in step. `sound` is that of the slots from the start of the stream.
inline void expect_in_step(const std::vector<SessionSlot>& slots) {
  SoundBands bands;
  std::vector<float> rows;
  for (const SessionSlot& slot : slots) bands.push(slot.sound, rows);
  ASSERT_EQ(rows.size(), slots.size() * SoundBands::kBands);
  for (size_t k = 0; k < slots.size(); ++k) {
    std::vector<float> shown = row_of(slots[k].picture);
    shown.resize(SoundBands::kBands);
    const auto heard = rows.begin() + int64_t(k) * SoundBands::kBands;
    ASSERT_EQ(shown, std::vector<float>(heard, heard + SoundBands::kBands)) << "slot " << k;
    ASSERT_TRUE(has_flag(slots[k].picture, slots[k].state)) << "slot " << k;
  }
}

inline std::vector<float> sound_of(const std::vector<SessionSlot>& slots) {
  std::vector<float> sound;
  for (const SessionSlot& slot : slots)
    sound.insert(sound.end(), slot.sound.begin(), slot.sound.end());
  return sound;
}

// Indices from 0 without a gap, and whole slots of sound.
inline void expect_continuous(const std::vector<SessionSlot>& slots) {
  int64_t source = 0;
  for (size_t k = 0; k < slots.size(); ++k) {
    ASSERT_EQ(slots[k].index, int64_t(k));
    ASSERT_EQ(slots[k].sound.size(), kSlotSamples);
    if (slots[k].source < 0) continue;
    ASSERT_EQ(slots[k].source, source) << "slot " << k;
    ++source;
  }
}

// A live session, an engine and a consumer on a simulated clock, in one thread.
class Simulation {
 public:
  using Latency = std::function<MediaInstant(int64_t segment)>;

  Simulation(SessionConfig config, Latency latency)
      : latency_(std::move(latency)), session(with_clock(std::move(config))) {}

  static MediaInstant ms(int64_t milliseconds) { return std::chrono::milliseconds(milliseconds); }

  // Runs for so long in steps of 1 ms. Every step calls `each`.
  void run(
      MediaInstant time, const std::function<void()>& each = [] {}) {
    for (const MediaInstant end = now + time; now < end; now += ms(1)) {
      each();
      while (!inside_.empty() && inside_.front().done <= now) {
        session.deliver(inside_.front().segment, inside_.front().pictures);
        inside_.pop_front();
      }
      while (std::optional<SignalSegment> segment = session.try_segment()) {
        const MediaInstant begin = inside_.empty() ? now : std::max(now, inside_.back().done);
        inside_.push_back(
            {segment->number, begin + latency_(segment->number), engine.run(*segment)});
      }
      if (!consumes) continue;
      while (std::optional<SessionSlot> slot = session.try_next()) {
        slots.push_back(std::move(*slot));
        times.push_back(now);
      }
    }
  }

  MediaInstant now{1'000'000'000};
  bool consumes = true;
  FakeEngine engine;
  std::vector<SessionSlot> slots;
  std::vector<MediaInstant> times;  // at which the slots were handed out

 private:
  struct Inside {
    int64_t segment;
    MediaInstant done;
    std::vector<Frame> pictures;
  };

  SessionConfig with_clock(SessionConfig config) {
    config.live = true;
    config.now = [this] { return now; };
    return config;
  }

  Latency latency_;
  std::deque<Inside> inside_;

 public:
  Session session;
};

}  // namespace weft::test
