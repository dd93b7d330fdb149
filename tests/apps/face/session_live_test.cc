// Live sessions on a simulated clock: pacing, jitter, states and interruptions.
#include <gtest/gtest.h>

#include <map>

#include "tests/apps/face/session_testing.h"

namespace weft {
namespace {

using namespace test;

Simulation::Latency constant(int64_t milliseconds) {
  return [=](int64_t) { return Simulation::ms(milliseconds); };
}

// Slots were handed out at E + index / 25, within the simulation's step.
void expect_paced(const Simulation& simulation) {
  for (size_t k = 0; k < simulation.slots.size(); ++k) {
    const MediaInstant due = simulation.times[0] + Simulation::ms(40 * int64_t(k));
    ASSERT_GE(simulation.times[k], due) << k;
    ASSERT_LE(simulation.times[k], due + Simulation::ms(1)) << k;
  }
}

void expect_states_at_borders(const std::vector<SessionSlot>& slots) {
  for (size_t k = 1; k < slots.size(); ++k)
    if (slots[k].state != slots[k - 1].state && !slots[k].frozen) {
      EXPECT_NE(slots[k].segment, slots[k - 1].segment) << k;
    }
}

TEST(SessionLive, WithoutSoundIdlePicturesComeAtTheirRate) {
  Simulation simulation({}, constant(200));
  simulation.run(Simulation::ms(60'000));
  // The first segment takes 200 ms, the delay of the clock 200 ms more.
  EXPECT_EQ(simulation.slots.size(), size_t((60'000 - 400) / 40));
  expect_paced(simulation);
  expect_continuous(simulation.slots);
  expect_in_step(simulation.slots);
  for (const SessionSlot& slot : simulation.slots) ASSERT_EQ(slot.state, SessionState::kIdle);
  const SessionCounts counts = simulation.session.counts();
  EXPECT_EQ(counts.clock.frozen, 0);
  EXPECT_EQ(counts.missing + counts.doubled, 0);
  EXPECT_EQ(counts.max_skew, 0);
  EXPECT_LE(counts.max_queued_slots, 36u);
}

TEST(SessionLive, SpeechAndListeningComeWithoutAGapOrADouble) {
  SessionConfig config;
  config.first_segment = 1;
  config.queued_seconds = 30;
  Simulation simulation(config, constant(300));
  const std::vector<float> sound = speech(16000 * 4, 1);
  simulation.run(Simulation::ms(3000));
  simulation.session.hear(true);
  simulation.run(Simulation::ms(3000));
  simulation.session.hear(false);
  simulation.session.push_sound(sound, 0);
  simulation.session.end_turn();
  simulation.run(Simulation::ms(8000));
  simulation.session.close();
  simulation.run(Simulation::ms(3000));
  expect_paced(simulation);
  expect_continuous(simulation.slots);
  expect_in_step(simulation.slots);
  expect_states_at_borders(simulation.slots);
  EXPECT_TRUE(simulation.session.finished());
  std::vector<SessionState> states;
  std::vector<float> spoken;
  for (const SessionSlot& slot : simulation.slots) {
    if (states.empty() || states.back() != slot.state) states.push_back(slot.state);
    if (slot.state == SessionState::kSpeaking)
      spoken.insert(spoken.end(), slot.sound.begin(), slot.sound.end());
  }
  using enum SessionState;
  EXPECT_EQ(states, (std::vector<SessionState>{kIdle, kListening, kSpeaking, kIdle}));
  spoken.resize(sound.size());
  EXPECT_EQ(spoken, sound);
  EXPECT_EQ(simulation.session.counts().clock.frozen, 0);
}

TEST(SessionLive, SoundThatComesInRealTimeIsPlayedWhole) {
  for (const int64_t late : {0, 30, 300}) {
    Simulation simulation({}, constant(250));
    simulation.run(Simulation::ms(2000));
    const std::vector<float> sound = speech(16000 * 10, 2);
    // 20 ms packets, of which every one may be late.
    std::mt19937 random(3);
    std::vector<int64_t> arrives;
    for (int64_t p = 0; p < 500; ++p) {
      arrives.push_back(20 * (p + 1) + int64_t(random() % uint32_t(late + 1)));
      if (p > 0) arrives[size_t(p)] = std::max(arrives[size_t(p)], arrives[size_t(p - 1)]);
    }
    const MediaInstant begin = simulation.now;
    size_t packet = 0;
    simulation.run(Simulation::ms(12'000), [&] {
      for (; packet < 500 && begin + Simulation::ms(arrives[packet]) <= simulation.now; ++packet)
        simulation.session.push_sound(std::span(sound).subspan(packet * 320, 320), 0);
      if (packet == 500) simulation.session.end_turn(), ++packet;
    });
    std::vector<float> spoken;
    for (const SessionSlot& slot : simulation.slots)
      if (slot.state == SessionState::kSpeaking)
        spoken.insert(spoken.end(), slot.sound.begin(), slot.sound.end());
    ASSERT_GE(spoken.size(), sound.size()) << late;
    spoken.resize(sound.size());
    EXPECT_EQ(spoken, sound) << "no silence came between, packets up to " << late << " ms late";
    expect_paced(simulation);
    expect_in_step(simulation.slots);
    EXPECT_EQ(simulation.session.counts().clock.frozen, 0);
  }
}

TEST(SessionLive, DrySpeechIsFilledWithSilenceAndGoesOn) {
  Simulation simulation({}, constant(100));
  simulation.run(Simulation::ms(1000));
  const std::vector<float> sound = speech(640 * 20, 3);
  simulation.session.push_sound(std::span(sound).first(640 * 15), 0);
  simulation.run(Simulation::ms(4000));  // a segment and a quarter, then nothing
  simulation.session.push_sound(std::span(sound).subspan(640 * 15), 0);
  simulation.session.end_turn();
  simulation.run(Simulation::ms(3000));
  expect_paced(simulation);
  expect_in_step(simulation.slots);
  expect_states_at_borders(simulation.slots);
  std::vector<float> spoken;
  for (const SessionSlot& slot : simulation.slots)
    if (std::ranges::any_of(slot.sound, [](float value) { return value != 0; }))
      spoken.insert(spoken.end(), slot.sound.begin(), slot.sound.end());
  EXPECT_EQ(spoken, sound) << "each sample is played once, in order";
}

TEST(SessionLive, JitterOfTheEngineWithinTheBufferIsNotSeen) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::mt19937 random(seed);
    Simulation simulation({}, [&](int64_t) { return Simulation::ms(150 + random() % 300); });
    simulation.run(Simulation::ms(60'000));
    expect_paced(simulation);
    expect_continuous(simulation.slots);
    EXPECT_EQ(simulation.session.counts().clock.frozen, 0);
    EXPECT_EQ(simulation.session.counts().clock.late, 0);
  }
}

TEST(SessionLive, AStalledEngineFreezesWithSilenceThenTheClockMovesOnce) {
  Simulation simulation({},
                        [](int64_t segment) { return Simulation::ms(segment == 10 ? 4000 : 200); });
  simulation.run(Simulation::ms(20'000));
  expect_continuous(simulation.slots);
  const SessionCounts counts = simulation.session.counts();
  EXPECT_EQ(counts.clock.frozen, 12);
  EXPECT_EQ(counts.clock.reanchors, 1);
  EXPECT_EQ(counts.max_skew, 0) << "a frozen picture has as much silence";
  EXPECT_EQ(counts.missing + counts.doubled, 0);
  int64_t discontinuities = 0;
  for (size_t k = 1; k < simulation.slots.size(); ++k) {
    const SessionSlot& slot = simulation.slots[k];
    discontinuities += slot.discontinuity;
    if (!slot.frozen) continue;
    EXPECT_EQ(slot.picture.rgb, simulation.slots[k - 1].picture.rgb);
    EXPECT_EQ(slot.sound, std::vector<float>(kSlotSamples));
  }
  EXPECT_EQ(discontinuities, 1);
}

// Segments of d seconds that take tau d each: with tau < 1 there is no gap after the initial delay,
// with tau > 1 the first one comes after delay / (tau - 1) (avatar.md, 4.4).
TEST(SessionLive, SlowEngineRunsDryWhenTheFormulaSays) {
  for (const int64_t block_ms : {432, 470, 560, 600, 720}) {
    SessionConfig config;
    config.queued_seconds = 60;
    Simulation simulation(config, constant(block_ms));
    simulation.session.push_sound(speech(16000 * 50, 5), 0);
    simulation.run(Simulation::ms(40'000));
    const double tau = double(block_ms) / 480;
    if (tau < 1) {
      EXPECT_EQ(simulation.session.counts().clock.frozen, 0) << tau;
      continue;
    }
    size_t first = 0;
    while (!simulation.slots[first].frozen) ++first;
    EXPECT_NEAR(double(first) * 0.04, 0.2 / (tau - 1), 0.48) << tau;
    EXPECT_EQ(simulation.session.counts().max_skew, 0);
  }
}

TEST(SessionLive, SlowConsumerOnlyDelays) {
  Simulation simulation({}, constant(100));
  simulation.run(Simulation::ms(5000));
  simulation.consumes = false;
  simulation.run(Simulation::ms(5000));
  simulation.consumes = true;
  simulation.run(Simulation::ms(5000));
  expect_continuous(simulation.slots);
  const SessionCounts counts = simulation.session.counts();
  EXPECT_LE(counts.max_queued_slots, 36u);
  EXPECT_EQ(counts.missing + counts.doubled, 0);
  EXPECT_EQ(counts.clock.reanchors, 1);
}

TEST(SessionLive, TwentyInterruptionsAtRandomMoments) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SessionConfig config;
    config.queued_seconds = 20;
    config.in_engine = 1 + int(seed % 4);
    config.first_segment = 1 + int(seed % 3);
    std::mt19937 random(seed);
    Simulation simulation(config, [&](int64_t) { return Simulation::ms(100 + random() % 350); });
    simulation.run(Simulation::ms(1000));
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> sound = speech(16000 * 6, seed * 100 + uint32_t(i));
      Session& session = simulation.session;
      session.hear(false);
      ASSERT_TRUE(session.push_sound(sound, session.epoch()));
      simulation.run(Simulation::ms(int64_t(random() % 5000)));
      const int epoch = session.epoch();
      session.interrupt();
      EXPECT_FALSE(session.push_sound(sound, epoch));
      const size_t shown = simulation.slots.size();
      simulation.run(Simulation::ms(2500));
      // At most 0.6 s of the speech are still played, then none of it.
      for (size_t k = shown; k < simulation.slots.size(); ++k) {
        const SessionSlot& slot = simulation.slots[k];
        if (k - shown >= 15 && !slot.frozen) {
          EXPECT_EQ(slot.state, SessionState::kListening) << seed << ' ' << i << ' ' << k - shown;
        }
        if (slot.state == SessionState::kListening) {
          EXPECT_EQ(slot.sound, std::vector<float>(kSlotSamples)) << "no sound of the old speech";
        }
      }
      EXPECT_EQ(simulation.slots.back().state, SessionState::kListening);
    }
    expect_continuous(simulation.slots);
    expect_states_at_borders(simulation.slots);
    const SessionCounts counts = simulation.session.counts();
    EXPECT_EQ(counts.interruptions, 20);
    EXPECT_EQ(counts.missing + counts.doubled, 0);
    EXPECT_EQ(counts.max_skew, 0);
    EXPECT_LE(counts.max_queued_slots, size_t(12 * (config.in_engine + 2)));
    // Every segment that began went through the engine, in order and once, and a shown picture is
    // the one that an engine with the same kept state gives.
    FakeEngine again;
    std::vector<std::vector<Frame>> pictures;
    for (size_t b = 0; b < simulation.engine.segments.size(); ++b) {
      ASSERT_EQ(simulation.engine.segments[b].number, int64_t(b));
      pictures.push_back(again.run(simulation.engine.segments[b]));
    }
    std::map<int64_t, size_t> shown;  // pictures of a segment so far
    for (const SessionSlot& slot : simulation.slots) {
      if (slot.frozen) continue;
      const size_t picture = shown[slot.segment]++;
      ASSERT_EQ(slot.picture.rgb, pictures[size_t(slot.segment)][picture].rgb) << slot.index;
    }
  }
}

// Ten pictures each, whose first bytes count from these values on.
std::shared_ptr<const SessionLoops> loops_from(int idle, int listening) {
  auto loops = std::make_shared<SessionLoops>();
  for (int k = 0; k < 10; ++k) {
    loops->idle.emplace_back(FakeEngine::kWidth, 1);
    loops->idle.back().rgb[0] = uint8_t(idle + k);
    loops->listening.emplace_back(FakeEngine::kWidth, 1);
    loops->listening.back().rgb[0] = uint8_t(listening + k);
  }
  return loops;
}

TEST(SessionLive, OtherLoopsAreShownFromTheNextSlotOn) {
  SessionConfig config;
  config.loops = loops_from(100, 200);
  Simulation simulation(config, constant(300));
  simulation.run(Simulation::ms(1000));
  const size_t shown = simulation.slots.size();
  ASSERT_GT(shown, 0u);
  simulation.session.set_loops(loops_from(10, 30));
  simulation.run(Simulation::ms(1000));
  ASSERT_GT(simulation.slots.size(), shown);
  for (size_t k = 0; k < simulation.slots.size(); ++k) {
    const int first = simulation.slots[k].picture.rgb[0];
    EXPECT_EQ(first >= 100, k < shown) << k;
    EXPECT_EQ(first % 10, int(k % 10)) << k;
  }
}

TEST(SessionLive, LoopsTakeNothingFromTheEngine) {
  SessionConfig config;
  config.queued_seconds = 20;
  config.loops = loops_from(100, 200);
  Simulation simulation(config, constant(300));
  simulation.run(Simulation::ms(2000));
  EXPECT_EQ(simulation.engine.segments.size(), 0u);
  EXPECT_EQ(simulation.slots.size(), 45u);
  EXPECT_EQ(simulation.slots[13].picture.rgb[0], 103);
  const std::vector<float> sound = speech(640 * 48, 4);
  simulation.session.push_sound(sound, 0);
  simulation.session.end_turn();
  simulation.run(Simulation::ms(5000));
  EXPECT_EQ(simulation.engine.segments.size(), 4u);
  simulation.session.push_sound(sound, 0);
  simulation.run(Simulation::ms(1000));
  simulation.session.interrupt();
  simulation.run(Simulation::ms(3000));
  EXPECT_EQ(simulation.slots.back().state, SessionState::kListening);
  EXPECT_GE(simulation.slots.back().picture.rgb[0], 200);
  expect_paced(simulation);
  expect_continuous(simulation.slots);
  EXPECT_EQ(simulation.session.counts().clock.frozen, 0);
  std::vector<float> spoken;
  for (const SessionSlot& slot : simulation.slots)
    if (slot.segment >= 0 && slot.segment < 4)
      spoken.insert(spoken.end(), slot.sound.begin(), slot.sound.end());
  EXPECT_EQ(spoken, sound);
}

}  // namespace
}  // namespace weft
