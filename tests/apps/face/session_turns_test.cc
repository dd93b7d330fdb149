// Sessions in threads: several of them on one engine, and random delays everywhere.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/check.h"
#include "tests/apps/face/session_testing.h"

namespace weft {
namespace {

using namespace test;

struct Turns {
  std::vector<SessionSlot> slots;
  std::vector<SignalSegment> segments;
};

void nap(std::mt19937& random) {
  if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
}

std::vector<std::vector<float>> speeches(int session) {
  std::vector<std::vector<float>> all;
  for (int turn = 0; turn < 4; ++turn)
    all.push_back(
        speech(size_t(640 * (5 + 7 * turn + 3 * session) + 11), uint32_t(10 * session + turn)));
  return all;
}

SessionConfig session_config_of(int session) {
  SessionConfig config;
  config.segment_frames = 1 + session % 4;  // sessions differ in size
  config.first_segment = 1;
  config.in_engine = 1 + session % 3;
  config.warm_up = session % 2;
  config.queued_seconds = 0.5;
  config.id = session;
  return config;
}

void produce(Session& session, int number, uint32_t seed) {
  std::mt19937 random(seed);
  for (const std::vector<float>& sound : speeches(number)) {
    std::span<const float> rest(sound);
    while (!rest.empty()) {
      const size_t count = std::min(rest.size(), size_t(1 + random() % 5000));
      EXPECT_TRUE(session.push_sound(rest.first(count), 0));
      rest = rest.subspan(count);
      nap(random);
    }
    session.end_turn();
  }
  session.close();
}

// Runs segments until there are none, with as many inside as the session allows.
void run_engine(Session& session, FakeEngine& engine, int in_engine, std::mt19937& random) {
  std::deque<std::pair<int64_t, std::vector<Frame>>> inside;
  const auto deliver = [&] {
    session.deliver(inside.front().first, std::move(inside.front().second));
    inside.pop_front();
  };
  for (;;) {
    std::optional<SignalSegment> segment =
        inside.empty() ? session.next_segment() : session.try_segment();
    nap(random);
    if (segment) inside.emplace_back(segment->number, engine.run(*segment));
    if (!segment && inside.empty()) return;
    if (!segment || int(inside.size()) == in_engine || random() % 2) deliver();
  }
}

std::vector<SessionSlot> consume(Session& session, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<SessionSlot> slots;
  while (std::optional<SessionSlot> slot = session.next()) {
    slots.push_back(std::move(*slot));
    nap(random);
  }
  return slots;
}

Turns alone(int number, uint32_t seed) {
  Turns turns;
  Session session(session_config_of(number));
  FakeEngine engine;
  std::thread producer([&] { produce(session, number, seed); });
  std::thread worker([&] {
    std::mt19937 random(seed + 1);
    run_engine(session, engine, session_config_of(number).in_engine, random);
  });
  turns.slots = consume(session, seed + 2);
  producer.join();
  worker.join();
  turns.segments = engine.segments;
  return turns;
}

void expect_same(const Turns& a, const Turns& b) {
  ASSERT_EQ(a.slots.size(), b.slots.size());
  for (size_t k = 0; k < a.slots.size(); ++k) {
    ASSERT_EQ(a.slots[k].picture.rgb, b.slots[k].picture.rgb) << k;
    ASSERT_EQ(a.slots[k].sound, b.slots[k].sound) << k;
    ASSERT_EQ(a.slots[k].state, b.slots[k].state) << k;
  }
  ASSERT_EQ(a.segments.size(), b.segments.size());
  for (size_t n = 0; n < a.segments.size(); ++n)
    ASSERT_EQ(a.segments[n].rows, b.segments[n].rows) << n;
}

TEST(SessionTurns, DelaysChangeNoBit) {
  for (int number = 0; number < 4; ++number) {
    const Turns expected = alone(number, 1);
    expect_continuous(expected.slots);
    expect_in_step(expected.slots);
    for (uint32_t seed = 2; seed < 8; ++seed) expect_same(alone(number, seed * 77), expected);
  }
}

// One engine runs the segments of the session that has the token.
std::vector<Turns> turns_together(int count, uint32_t seed) {
  TurnToken token;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<FakeEngine> states(static_cast<size_t>(count));  // what the engine keeps of each
  for (int s = 0; s < count; ++s) {
    SessionConfig config = session_config_of(s);
    config.turns = &token;
    sessions.push_back(std::make_unique<Session>(config));
  }
  std::vector<Turns> turns(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int s = 0; s < count; ++s) {
    threads.emplace_back([&, s] { produce(*sessions[s], s, seed + 3 * s); });
    threads.emplace_back([&, s] { turns[s].slots = consume(*sessions[s], seed + 3 * s + 1); });
  }
  std::thread engine([&] {
    std::mt19937 random(seed + 99);
    while (std::optional<int> s = token.wait()) {
      run_engine(*sessions[*s], states[*s], session_config_of(*s).in_engine, random);
    }
  });
  for (std::thread& thread : threads) thread.join();
  token.close();
  engine.join();
  EXPECT_EQ(token.turns(), 4 * count) << "a turn for each speech";
  for (int s = 0; s < count; ++s) turns[s].segments = states[s].segments;
  return turns;
}

TEST(SessionTurns, TwoAndEightSessionsOnOneEngineEqualEachAlone) {
  for (const int count : {2, 8}) {
    std::vector<Turns> expected;
    for (int s = 0; s < count; ++s) expected.push_back(alone(s, 1));
    for (uint32_t seed = 0; seed < 3; ++seed) {
      const std::vector<Turns> turns = turns_together(count, 1000 * seed);
      for (int s = 0; s < count; ++s) expect_same(turns[s], expected[s]);
    }
  }
}

TEST(SessionTurns, WhoLeavesGivesTheTokenBack) {
  TurnToken token;
  SessionConfig config;
  config.turns = &token;
  auto first = std::make_unique<Session>(config);
  config.id = 1;
  Session second(config);
  first->push_sound(speech(640 * 30, 1), 0);
  second.push_sound(speech(640 * 30, 2), 0);
  EXPECT_TRUE(token.holds(0));
  EXPECT_FALSE(second.try_segment()) << "it has no token";
  EXPECT_TRUE(first->try_segment());
  first.reset();
  EXPECT_TRUE(token.holds(1));
  EXPECT_TRUE(second.try_segment());
  second.fail(std::make_exception_ptr(Error(ErrorKind::kComm, "gone")));
  EXPECT_FALSE(token.holds(1));
}

TEST(SessionTurns, AStalledSpeechDoesNotKeepTheEngine) {
  TurnToken token;
  SessionConfig config;
  config.turns = &token;
  config.revoke = std::chrono::milliseconds(20);
  Session stalled(config);
  config.id = 1;
  Session other(config);
  stalled.push_sound(speech(640 * 6, 1), 0);  // half a segment
  other.push_sound(speech(640 * 12, 2), 0);
  EXPECT_TRUE(token.holds(0));
  EXPECT_FALSE(stalled.next_segment());
  EXPECT_TRUE(token.holds(1));
  FakeEngine engine;
  const std::optional<SignalSegment> segment = other.next_segment();
  ASSERT_TRUE(segment);
  other.deliver(segment->number, engine.run(*segment));
  other.end_turn();
  EXPECT_TRUE(token.holds(0)) << "it goes on where it was";
  stalled.push_sound(speech(640 * 6, 3), 0);
  EXPECT_TRUE(stalled.next_segment());
}

TEST(SessionTurns, InterruptionEndsTheTurnAfterItsListeningBlock) {
  TurnToken token;
  SessionConfig config;
  config.turns = &token;
  Session first(config);
  config.id = 1;
  Session second(config);
  FakeEngine engine;
  first.push_sound(speech(640 * 40, 1), 0);
  second.push_sound(speech(640 * 12, 2), 0);
  const std::optional<SignalSegment> muted = first.try_segment();
  ASSERT_TRUE(muted);
  first.interrupt();
  second.interrupt();  // while it waits: it still waits, to listen
  EXPECT_TRUE(token.holds(0));
  first.deliver(muted->number, {});
  const std::optional<SignalSegment> listening = first.try_segment();
  ASSERT_TRUE(listening);
  EXPECT_EQ(listening->state, SessionState::kListening);
  EXPECT_FALSE(first.try_segment());
  EXPECT_TRUE(token.holds(0)) << "its block is inside the engine";
  first.deliver(listening->number, engine.run(*listening));
  EXPECT_FALSE(first.try_segment()) << "its turn is over";
  EXPECT_TRUE(token.holds(1));
  EXPECT_EQ(second.try_segment()->state, SessionState::kListening);
}

}  // namespace
}  // namespace weft
