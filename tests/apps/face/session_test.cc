// Sessions offline, by the call: segments, bounds, states, interruptions and faults of an engine.
#include "apps/live/face/session.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/apps/face/session_testing.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

using namespace test;

// Plays a sound through a session in one thread, with pieces of random size.
std::vector<SessionSlot> played_slots(Session& session, FakeEngine& engine,
                                      std::span<const float> sound, uint32_t seed = 0,
                                      size_t largest = 3000) {
  std::mt19937 random(seed);
  std::vector<SessionSlot> slots;
  const auto run = [&] {
    for (;;) {
      std::optional<SignalSegment> segment = session.try_segment();
      if (segment) session.deliver(segment->number, engine.run(*segment));
      std::optional<SessionSlot> slot;
      while ((slot = session.try_next())) slots.push_back(std::move(*slot));
      if (!segment) return;
    }
  };
  while (!sound.empty()) {
    const size_t count = std::min(sound.size(), 1 + random() % largest);
    EXPECT_TRUE(session.push_sound(sound.first(count), session.epoch()));
    sound = sound.subspan(count);
    run();
  }
  session.close();
  run();
  EXPECT_TRUE(session.finished());
  return slots;
}

TEST(Session, EveryPictureShowsTheSoundThatIsHandedOutWithIt) {
  const std::vector<float> sound = speech(16000 * 5 + 123, 1);
  for (const int segment_frames : {1, 2, 3, 4})
    for (int first = 1; first <= segment_frames; ++first) {
      SessionConfig config;
      config.segment_frames = segment_frames;
      config.first_segment = first;
      Session session(config);
      FakeEngine engine;
      const std::vector<SessionSlot> slots = played_slots(session, engine, sound, uint32_t(first));
      expect_continuous(slots);
      expect_in_step(slots);
      // The sound is the one that was pushed, filled up to whole segments with silence.
      std::vector<float> heard = sound_of(slots);
      const size_t segment = size_t(segment_frames) * 4 * kSlotSamples;
      ASSERT_GE(heard.size(), sound.size());
      EXPECT_LT(heard.size(), sound.size() + segment);
      for (size_t i = sound.size(); i < heard.size(); ++i) ASSERT_EQ(heard[i], 0);
      heard.resize(sound.size());
      EXPECT_EQ(heard, sound);
      EXPECT_EQ(engine.segments[0].frames, first);
      EXPECT_EQ(engine.segments[1].frames, segment_frames);
      EXPECT_EQ(session.counts().max_skew, 0);
    }
}

TEST(Session, SixtySecondsHaveEveryIndexOnceNoSkewAndBoundedQueues) {
  for (const int in_engine : {1, 4}) {
    SessionConfig config;
    config.in_engine = in_engine;
    config.first_segment = 1;
    Session session(config);
    FakeEngine engine;
    const std::vector<float> sound = speech(16000 * 60, 2);
    const std::vector<SessionSlot> slots = played_slots(session, engine, sound, 9);
    expect_continuous(slots);
    const SessionCounts counts = session.counts();
    EXPECT_GE(counts.slots, 1500);
    EXPECT_LT(counts.slots, 1500 + 12);
    EXPECT_EQ(counts.samples, counts.slots * int64_t(kSlotSamples));
    EXPECT_EQ(counts.missing, 0);
    EXPECT_EQ(counts.doubled, 0);
    EXPECT_EQ(counts.max_skew, 0);
    EXPECT_LE(counts.max_queued_slots, size_t(12 * (in_engine + 2)));
    EXPECT_LE(counts.max_queued_samples, 32000u);
    EXPECT_LE(counts.max_in_engine, in_engine);
  }
}

TEST(Session, SlowConsumerMakesTheEngineWaitAndLosesNothing) {
  SessionConfig config;
  config.queued_seconds = 60;
  config.in_engine = 2;
  Session session(config);
  FakeEngine engine;
  const std::vector<float> sound = speech(16000 * 20, 3);
  session.push_sound(sound, 0);
  session.close();
  std::vector<SessionSlot> slots;
  int64_t waits = 0;
  while (!session.finished()) {
    std::deque<SignalSegment> inside;
    while (std::optional<SignalSegment> segment = session.try_segment()) inside.push_back(*segment);
    waits += inside.empty();
    EXPECT_LE(inside.size(), 2u);
    for (const SignalSegment& segment : inside)
      session.deliver(segment.number, engine.run(segment));
    if (std::optional<SessionSlot> slot = session.try_next()) slots.push_back(std::move(*slot));
  }
  EXPECT_GT(waits, 100);
  EXPECT_LE(session.counts().max_queued_slots, size_t(12 * 4));
  expect_continuous(slots);
  expect_in_step(slots);
  EXPECT_EQ(slots.size(), 504u);
}

TEST(Session, ProducerOfSoundWaitsForRoom) {
  SessionConfig config;
  config.queued_seconds = 1;
  Session session(config);
  const std::vector<float> sound = speech(16000 * 10, 4);
  std::thread producer([&] {
    EXPECT_TRUE(session.push_sound(sound, 0));
    session.close();
  });
  FakeEngine engine;
  std::vector<SessionSlot> slots;
  std::thread engine_thread([&] {
    while (std::optional<SignalSegment> segment = session.next_segment())
      session.deliver(segment->number, engine.run(*segment));
  });
  while (std::optional<SessionSlot> slot = session.next()) slots.push_back(std::move(*slot));
  producer.join();
  engine_thread.join();
  EXPECT_LE(session.counts().max_queued_samples, 16000u);
  std::vector<float> heard = sound_of(slots);
  heard.resize(sound.size());
  EXPECT_EQ(heard, sound);
}

TEST(Session, FirstLatentFrameOfACausalVaeHasOnePicture) {
  for (const int first_segment : {1, 3}) {
    SessionConfig config;
    config.first_pictures = 1;
    config.first_segment = first_segment;
    Session session(config);
    FakeEngine engine(1);
    const std::vector<float> sound = speech(640 * 24, 5);
    const std::vector<SessionSlot> slots = played_slots(session, engine, sound);
    // A segment of n latent frames has 4 n rows, but the first one 3 pictures less.
    EXPECT_EQ(engine.segments[0].rows.size(), size_t(first_segment * 4 * Session::kSignalColumns));
    EXPECT_EQ(slots.size(), first_segment == 3 ? 9u + 24 : 1u + 24);
    expect_continuous(slots);
    expect_in_step(slots);
    for (size_t k = 0; k < 3; ++k) {
      const float* row = engine.segments[0].rows.data() + k * Session::kSignalColumns;
      for (int c = 0; c < 32; ++c) ASSERT_EQ(row[c], SoundBands::silence());
      EXPECT_EQ(std::vector<float>(row + 32, row + 35), (std::vector<float>{1, 0, 0}));
    }
    std::vector<float> heard = sound_of(slots);
    heard.resize(sound.size());
    EXPECT_EQ(heard, sound);
    EXPECT_EQ(session.counts().missing, 0);
    EXPECT_EQ(session.counts().doubled, 0);
  }
}

TEST(Session, WarmUpIsSilentIdleAndNotShown) {
  SessionConfig config;
  config.warm_up = 3;
  config.first_pictures = 1;
  config.first_segment = 1;
  Session session(config);
  FakeEngine engine(1);
  const std::vector<SessionSlot> slots = played_slots(session, engine, speech(640 * 30, 6));
  for (int b = 0; b < 3; ++b) {
    EXPECT_TRUE(engine.segments[b].warm_up);
    for (size_t k = 0; k < 12; ++k) {
      const float* row = engine.segments[b].rows.data() + k * Session::kSignalColumns;
      for (int c = 0; c < 32; ++c) ASSERT_EQ(row[c], SoundBands::silence());
      EXPECT_EQ(std::vector<float>(row + 32, row + 35), (std::vector<float>{1, 0, 0}));
    }
  }
  EXPECT_FALSE(engine.segments[3].warm_up);
  EXPECT_EQ(engine.segments[3].frames, 1);
  EXPECT_EQ(slots[0].segment, 3);
  expect_continuous(slots);
  expect_in_step(slots);
  EXPECT_EQ(session.counts().warm_up_segments, 3);
}

TEST(Session, StatesChangeAtTheBordersOfBlocksOnly) {
  SessionConfig config;
  config.first_segment = 1;
  config.queued_seconds = 60;
  Session session(config);
  FakeEngine engine;
  using enum SessionState;
  session.rest(kIdle, 20);
  session.push_sound(speech(640 * 17, 7), 0);
  session.end_turn();
  session.rest(kListening, 13);
  session.push_sound(speech(640 * 5, 8), 0);
  session.push_sound(speech(640 * 5, 9), 0);
  const std::vector<SessionSlot> slots = played_slots(session, engine, {});
  const std::vector<std::pair<SessionState, int>> expected = {
      {kIdle, 24}, {kSpeaking, 4 + 24}, {kListening, 24}, {kSpeaking, 4 + 12}};
  size_t at = 0;
  for (const auto& [state, count] : expected)
    for (int k = 0; k < count; ++k, ++at) ASSERT_EQ(slots[at].state, state) << at;
  EXPECT_EQ(at, slots.size());
  expect_continuous(slots);
  expect_in_step(slots);
}

TEST(Session, InterruptionDropsTheSoundMutesTheEngineAndListens) {
  SessionConfig config;
  config.in_engine = 3;
  config.queued_seconds = 60;
  Session session(config);
  FakeEngine engine;
  const std::vector<float> first = speech(640 * 200, 10), second = speech(640 * 30, 11);
  session.push_sound(first, 0);
  std::vector<SignalSegment> inside;
  for (int b = 0; b < 2; ++b) {
    inside.push_back(*session.try_segment());
    session.deliver(inside[b].number, engine.run(inside[b]));
  }
  for (int b = 2; b < 4; ++b) inside.push_back(*session.try_segment());
  std::vector<SessionSlot> slots;
  for (int k = 0; k < 5; ++k) slots.push_back(*session.try_next());
  EXPECT_FALSE(session.muted(2));

  session.interrupt();
  EXPECT_EQ(session.state(), SessionState::kInterrupted);
  EXPECT_TRUE(session.muted(2) && session.muted(3));
  EXPECT_FALSE(session.push_sound(first, 0)) << "the rest of the old speech is not played";
  EXPECT_TRUE(session.push_sound(second, session.epoch()));
  for (int b = 2; b < 4; ++b) session.deliver(inside[b].number, engine.run(inside[b]));
  for (SessionSlot& slot : played_slots(session, engine, {})) slots.push_back(std::move(slot));

  // 0.6 s of the 19 queued pictures are kept, then a listening segment comes, then the new speech.
  ASSERT_EQ(slots.size(), 5u + 15 + 12 + 36);
  for (size_t k = 0; k < slots.size(); ++k) {
    const SessionState state =
        k >= 20 && k < 32 ? SessionState::kListening : SessionState::kSpeaking;
    EXPECT_EQ(slots[k].state, state) << k;
    EXPECT_EQ(slots[k].segment, k < 12 ? 0 : k < 20 ? 1 : 4 + int64_t(k - 20) / 12) << k;
  }
  expect_continuous(slots);
  const std::vector<float> heard = sound_of(slots);
  for (size_t i = 0; i < 20 * kSlotSamples; ++i) ASSERT_EQ(heard[i], first[i]);
  for (size_t i = 20 * kSlotSamples; i < 32 * kSlotSamples; ++i) ASSERT_EQ(heard[i], 0);
  for (size_t i = 0; i < second.size(); ++i) ASSERT_EQ(heard[32 * kSlotSamples + i], second[i]);
  // The engine ran all segments in order; the bands after the muted ones continue theirs.
  SoundBands bands;
  std::vector<float> rows;
  bands.push(std::span(first).first(4 * 12 * kSlotSamples), rows);
  bands.push(std::vector<float>(12 * kSlotSamples), rows);
  for (size_t b = 0; b < 5; ++b) {
    EXPECT_EQ(engine.segments[b].number, int64_t(b));
    EXPECT_EQ(engine.segments[b].epoch, b < 4 ? 0 : 1);
    for (size_t k = 0; k < 12; ++k)
      for (size_t c = 0; c < 32; ++c)
        ASSERT_EQ(engine.segments[b].rows[k * Session::kSignalColumns + c],
                  rows[(b * 12 + k) * 32 + c])
            << b << ' ' << k;
  }
  EXPECT_EQ(session.counts().muted_segments, 2);
  EXPECT_EQ(session.counts().missing, 0);
  EXPECT_EQ(session.counts().max_skew, 0);
}

TEST(Session, FaultsOfTheEngineAreCountedAndStayInStep) {
  SessionConfig config;
  config.in_engine = 4;
  config.queued_seconds = 60;
  Session session(config);
  FakeEngine engine;
  session.push_sound(speech(640 * 12 * 8, 12), 0);
  session.close();
  std::vector<std::vector<Frame>> pictures;
  for (int b = 0; b < 4; ++b) pictures.push_back(engine.run(*session.try_segment()));
  session.deliver(0, pictures[0]);
  session.deliver(0, pictures[0]);  // 12 too many
  session.deliver(2, pictures[2]);  // segment 1 is left out
  pictures[3].resize(9);            // and 3 of segment 3
  session.deliver(3, pictures[3]);
  const std::vector<SessionSlot> slots = [&] {
    std::vector<SessionSlot> all;
    while (!session.finished()) {
      if (auto segment = session.try_segment())
        session.deliver(segment->number, engine.run(*segment));
      while (auto slot = session.try_next()) all.push_back(std::move(*slot));
    }
    return all;
  }();
  EXPECT_EQ(session.counts().doubled, 12);
  EXPECT_EQ(session.counts().missing, 12 + 3);
  ASSERT_EQ(slots.size(), 96u);
  expect_continuous(slots);
  EXPECT_EQ(slots[15].picture.rgb, slots[11].picture.rgb);
  EXPECT_EQ(slots[24].picture.rgb, pictures[2][0].rgb);
  EXPECT_EQ(slots[47].picture.rgb, pictures[3][8].rgb);
  EXPECT_EQ(session.counts().max_skew, 0);
}

TEST(Session, AnErrorOfTheEngineEndsEveryWaitingCall) {
  SessionConfig config;
  config.queued_seconds = 1;
  Session session(config);
  const auto fails = [](auto call) { expect_error(ErrorKind::kNonFinite, "block 7", call); };
  std::thread producer([&] { fails([&] { session.push_sound(std::vector<float>(99999), 0); }); });
  std::thread consumer([&] { fails([&] { session.next(); }); });
  std::thread rests([&] { fails([&] { session.rest(SessionState::kIdle, 99999); }); });
  const std::optional<SignalSegment> segment = session.next_segment();
  ASSERT_TRUE(segment);
  session.fail(std::make_exception_ptr(Error(ErrorKind::kNonFinite, "NaN in block 7")));
  session.fail(std::make_exception_ptr(Error(ErrorKind::kComm, "a later error")));
  producer.join();
  consumer.join();
  rests.join();
  fails([&] { session.next_segment(); });
  fails([&] { session.deliver(segment->number, {}); });
}

TEST(Session, ConfigsThatAreNotLegalNameTheFieldAndTheLegalValues) {
  const auto refused = [](const std::string& text, auto change) {
    SessionConfig config;
    change(config);
    expect_error(ErrorKind::kUsage, text, [&] { Session session(config); });
  };
  refused("block_frames is 0, but it must be at least 1", [](auto& c) { c.segment_frames = 0; });
  refused("first_block is 4, but it must be between 1 and block_frames (3)",
          [](auto& c) { c.first_segment = 4; });
  refused("first_pictures is 5", [](auto& c) { c.first_pictures = 5; });
  refused("in_engine is 0", [](auto& c) { c.in_engine = 0; });
  refused("warm_up is -1", [](auto& c) { c.warm_up = -1; });
  refused("sample_rate is 44100, but it must be 16000", [](auto& c) { c.sample_rate = 44100; });
  refused("fps is 30", [](auto& c) { c.fps = {30, 1}; });
  refused("queued_seconds is 0", [](auto& c) { c.queued_seconds = 0; });
  refused("loops is 0", [](auto& c) { c.loops = std::make_shared<SessionLoops>(); });
  TurnToken turns;
  refused("loops", [&](auto& c) { c.turns = &turns, c.live = true; });
}

}  // namespace
}  // namespace weft
