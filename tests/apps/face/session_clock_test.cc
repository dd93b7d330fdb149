// Media times, the media clock, the timeline, the queue of sound and the token of turns.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "apps/live/face/media_clock.h"
#include "apps/live/face/session_timeline.h"
#include "apps/live/face/speech_queue.h"
#include "apps/live/face/turn_token.h"
#include "kernels/check.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

const MediaRate kRates[] = {{16, 1}, {24, 1}, {25, 1}, {30, 1}, {30000, 1001}};

TEST(MediaTime, TicksAreExactForAnyIndex) {
  for (const MediaRate rate : kRates) {
    for (const int64_t timescale :
         {int64_t{90000}, int64_t{16000}, int64_t{12800}, int64_t{48000}}) {
      int64_t last = -1;
      for (int64_t k = 0; k < 100000; ++k) {
        const int64_t pts = ticks_at(k, rate, timescale);
        ASSERT_GT(pts, last);
        last = pts;
      }
      for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{9'999'999}, int64_t{10'000'000}}) {
        // 2 |pts - exact| <= 1 in whole numbers.
        const int64_t exact = k * rate.den * timescale;
        EXPECT_LE(std::abs(2 * (ticks_at(k, rate, timescale) * rate.num - exact)), rate.num) << k;
      }
    }
  }
}

TEST(MediaTime, SamplesOfAPictureNeverDriftFromIt) {
  for (const MediaRate rate : kRates)
    for (const int64_t sr : {int64_t{16000}, int64_t{44100}, int64_t{48000}}) {
      double first = 0, last = 0;
      for (int64_t k = 0; k <= 1'000'000; k += 7) {
        const double skew = double(ticks_at(k, rate, sr)) / double(sr) -
                            double(k) * double(rate.den) / double(rate.num);
        ASSERT_LE(std::abs(skew), 1.0 / (2 * double(sr)) + 1e-9) << k;
        (k < 100'000 ? first : last) = std::max(k < 100'000 ? first : last, std::abs(skew));
      }
      EXPECT_LE(last, first + 1e-9) << "the skew grows";
    }
}

MediaClock started_clock(MediaClockConfig config = {}) {
  MediaClock clock(config);
  clock.start(MediaInstant(0));
  return clock;
}

TEST(MediaClock, SendsEachSlotWhenItIsDue) {
  MediaClock clock = started_clock();
  for (int64_t k = 0; k < 1000; ++k) {
    const MediaInstant due = milliseconds(200 + 40 * k);
    const MediaClock::Decision early = clock.poll(due - MediaInstant(1), true);
    EXPECT_EQ(early.action, MediaClock::Action::kWait);
    EXPECT_EQ(early.wake, due);
    EXPECT_EQ(clock.poll(due, true).action, MediaClock::Action::kSend);
  }
  EXPECT_EQ(clock.counts().sent, 1000);
  EXPECT_EQ(clock.counts().max_lateness.count(), 0);
  EXPECT_EQ(clock.counts().frozen, 0);
}

// Pictures come every 40 ms with a delay U(0, J) of their own.
MediaClock::Counts run_jitter(milliseconds jitter, uint32_t seed) {
  std::mt19937_64 random(seed);
  MediaClock clock(MediaClockConfig{});
  std::vector<MediaInstant> ready;
  for (int64_t k = 0; k < 5000; ++k)
    ready.push_back(milliseconds(40 * k) +
                    MediaInstant(int64_t(random() % uint64_t(MediaInstant(jitter).count() + 1))));
  clock.start(ready[0]);
  size_t next = 0;
  for (MediaInstant now = ready[0]; next < ready.size(); now += milliseconds(1)) {
    const int64_t slot = clock.next_slot();
    const MediaInstant due = clock.due(slot);
    const MediaClock::Decision decision = clock.poll(now, ready[next] <= now);
    if (decision.action == MediaClock::Action::kSend) {
      EXPECT_GE(now, due);
      ++next;
    }
  }
  EXPECT_EQ(clock.counts().sent, 5000);
  return clock.counts();
}

TEST(MediaClock, JitterWithinTheDelayIsHidden) {
  for (uint32_t seed = 0; seed < 5; ++seed) {
    const MediaClock::Counts counts = run_jitter(milliseconds(200), seed);
    EXPECT_EQ(counts.frozen, 0);
    EXPECT_EQ(counts.late, 0);
    EXPECT_EQ(counts.reanchors, 0);
    EXPECT_LE(counts.max_lateness, milliseconds(1));  // the step of this loop
  }
}

TEST(MediaClock, JitterBeyondTheDelayFreezesAndIsNeverLate) {
  const MediaClock::Counts counts = run_jitter(milliseconds(500), 1);
  EXPECT_GT(counts.frozen, 0);
  EXPECT_LE(counts.frozen, 20) << "each freeze adds to the delay, so they end";
  EXPECT_EQ(counts.late, 0);
  EXPECT_EQ(counts.reanchors, 0);
}

TEST(MediaClock, AGapBeyondTheGraceMovesTheEpochOnce) {
  MediaClock clock = started_clock();
  MediaInstant now(0);
  int64_t discontinuities = 0;
  const auto run_until = [&](MediaInstant end, bool ready) {
    for (; now < end; now += milliseconds(1))
      discontinuities += clock.poll(now, ready).discontinuity;
  };
  run_until(milliseconds(2000), true);
  EXPECT_EQ(clock.counts().sent, 45);
  run_until(milliseconds(5000), false);
  EXPECT_EQ(clock.counts().frozen, 12) << "the grace of 480 ms";
  EXPECT_EQ(discontinuities, 0);
  run_until(milliseconds(9000), true);
  EXPECT_EQ(discontinuities, 1);
  EXPECT_EQ(clock.counts().reanchors, 1);
  EXPECT_EQ(clock.counts().late, 1);
  // No burst makes up for the gap.
  EXPECT_EQ(clock.counts().sent, 45 + 100);
}

TEST(MediaClock, ShortLatenessIsMadeUp) {
  MediaClock clock = started_clock();
  EXPECT_EQ(clock.poll(milliseconds(200), true).action, MediaClock::Action::kSend);
  // The consumer comes back 300 ms late, seven slots are due.
  int64_t sent = 0;
  while (clock.poll(milliseconds(540), true).action == MediaClock::Action::kSend) ++sent;
  EXPECT_EQ(sent, 8);
  EXPECT_EQ(clock.counts().reanchors, 0);
  EXPECT_EQ(clock.counts().max_lateness, milliseconds(300));
}

TEST(MediaClock, TimeThatRunsBackwardsBeginsAnew) {
  MediaClock clock = started_clock();
  clock.poll(milliseconds(1000), true);
  const MediaClock::Decision decision = clock.poll(milliseconds(100), true);
  EXPECT_TRUE(decision.discontinuity);
  EXPECT_EQ(decision.action, MediaClock::Action::kSend);
  EXPECT_EQ(clock.counts().resets, 1);
  EXPECT_EQ(clock.poll(milliseconds(101), true).wake, milliseconds(140));
}

TEST(SessionTimeline, BlocksHaveOneStateAndOnlyASpeechBeginsWithAShortOne) {
  SessionTimeline timeline(3, 1, 2);
  using enum SessionState;
  int64_t frame = 0;
  const auto expect = [&](SessionState state, int frames, bool warm_up) {
    const SessionSegment segment = timeline.begin(state);
    EXPECT_EQ(segment.frames, frames);
    EXPECT_EQ(segment.first_frame, frame);
    EXPECT_EQ(segment.warm_up, warm_up);
    EXPECT_EQ(timeline.state(), state);
    frame += frames;
  };
  expect(kIdle, 3, true);
  expect(kIdle, 3, true);
  expect(kIdle, 3, false);
  expect(kSpeaking, 1, false);
  expect(kSpeaking, 3, false);
  expect(kListening, 3, false);
  expect(kSpeaking, 1, false);
  timeline.interrupt();
  EXPECT_EQ(timeline.state(), kInterrupted);
  EXPECT_EQ(timeline.epoch(), 1);
  EXPECT_TRUE(timeline.owes_listening());
  expect(kListening, 3, false);
  EXPECT_FALSE(timeline.owes_listening());
  expect(kSpeaking, 1, false);
}

TEST(SpeechQueue, IsBoundedAndGivesEverySampleOnce) {
  std::mt19937 random(3);
  SpeechQueue queue(1000);
  float next_in = 1, next_out = 1;
  std::vector<float> piece, out;
  for (int i = 0; i < 20000; ++i) {
    piece.assign(random() % 400, 0);
    for (size_t k = 0; k < piece.size(); ++k) piece[k] = next_in + float(k);
    const size_t room = queue.room(), taken = queue.offer(piece);
    EXPECT_EQ(taken, std::min(room, piece.size()));
    next_in += float(taken);
    EXPECT_LE(queue.size(), 1000u);
    if (!queue.head() || random() % 2) continue;
    const size_t there = queue.head()->samples;
    out.assign(random() % 300, -1);
    EXPECT_FALSE(queue.take(out));
    for (size_t k = 0; k < out.size(); ++k) {
      if (k < there) {
        ASSERT_EQ(out[k], next_out);
        ++next_out;
      } else {
        ASSERT_EQ(out[k], 0) << "silence fills the rest";
      }
    }
    if (next_in > 1e7f) next_in = next_out = 1, queue.drop();
  }
}

TEST(SpeechQueue, ABlockHasSoundOfOneStretchOnly) {
  SpeechQueue queue(100);
  const std::vector<float> ten(10, 0.5f);
  queue.offer(ten);
  EXPECT_FALSE(queue.head()->ended);
  EXPECT_FALSE(queue.end_turn());
  queue.offer(ten);
  EXPECT_EQ(queue.rest(SessionState::kListening, 1000), 80u);
  std::vector<float> out(16);
  EXPECT_TRUE(queue.take(out)) << "the first speech ends";
  EXPECT_EQ(out[9], 0.5f);
  EXPECT_EQ(out[10], 0);
  EXPECT_TRUE(queue.head()->ended) << "a rest ends the speech before it";
  EXPECT_TRUE(queue.take(out));
  EXPECT_EQ(queue.head()->state, SessionState::kListening);
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(queue.take(out));
  EXPECT_FALSE(queue.head()->ended) << "not all of the rest had room";
  EXPECT_EQ(queue.rest(SessionState::kListening, 20), 20u);
  EXPECT_EQ(queue.rest(SessionState::kListening, 10), 10u);
  EXPECT_EQ(queue.head()->samples, 36u);
  EXPECT_TRUE(queue.head()->ended);
  out.resize(36);
  EXPECT_TRUE(queue.take(out)) << "a rest ends where the next one begins";
  EXPECT_EQ(queue.head()->samples, 10u);
  EXPECT_TRUE(queue.take(out));
  EXPECT_FALSE(queue.head());
  queue.offer(ten);
  EXPECT_FALSE(queue.take(out)) << "it is open";
  EXPECT_EQ(queue.head()->samples, 0u);
  EXPECT_TRUE(queue.end_turn()) << "nothing was left of it";
  EXPECT_FALSE(queue.head());
}

TEST(TurnToken, IsFirstComeFirstServedAndStarvesNobody) {
  constexpr int kSessions = 8;
  TurnToken token;
  std::mt19937 random(5);
  std::vector<int> waited(kSessions, 0);
  std::set<int> wanting;
  for (int i = 0; i < 5000; ++i) {
    const int asks = int(random() % kSessions);
    token.request(asks);
    token.request(asks);
    if (wanting.insert(asks).second) waited[asks] = 0;
    if (random() % 2) continue;
    if (random() % 10 == 0) {  // one leaves, whether it has the token or waits for it
      const int leaves = int(random() % kSessions);
      token.release(leaves);
      wanting.erase(leaves);
      if (wanting.empty()) continue;
    }
    const int holder = *token.wait();
    int holders = 0;
    for (int s = 0; s < kSessions; ++s) holders += token.holds(s);
    EXPECT_EQ(holders, 1);
    EXPECT_TRUE(wanting.contains(holder));
    for (const int s : wanting) {
      if (s == holder) continue;
      EXPECT_LE(++waited[s], kSessions - 1) << "a session starves";
    }
    token.release(holder);
    wanting.erase(holder);
  }
}

TEST(TurnToken, WaitingEndsWhenItIsClosedAndNobodyWantsIt) {
  TurnToken token;
  token.request(3);
  token.close();
  EXPECT_EQ(token.wait(), 3);
  std::thread releases([&] { token.release(3); });
  releases.join();
  EXPECT_EQ(token.wait(), std::nullopt);
  EXPECT_EQ(token.turns(), 1);
}

}  // namespace
}  // namespace weft
