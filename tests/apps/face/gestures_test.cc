// Where a face looks and when it blinks. AvatarGolden compares them with the recipe's.
#include "apps/live/face/gestures.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace weft {
namespace {

using enum SessionState;

std::vector<Gesture> gestures_of(uint64_t seed, SessionState state, int frames) {
  Gestures gestures(seed);
  std::vector<Gesture> out;
  for (int f = 0; f < frames; ++f) out.push_back(gestures.next(state));
  return out;
}

TEST(Gestures, AFaceBlinksEveryFewSecondsInEveryState) {
  for (const SessionState state : {kIdle, kListening, kSpeaking}) {
    std::set<int> waits;
    int last = -1;
    const std::vector<Gesture> all = gestures_of(7, state, 20000);
    EXPECT_EQ(all[0].lids, 0);
    for (int f = 0; f < int(all.size()); ++f) {
      if (all[size_t(f)].lids == 0) continue;
      EXPECT_EQ(all[size_t(f)].lids, 1);
      if (last >= 0) waits.insert(f - last);
      last = f;
    }
    EXPECT_EQ(waits.size(), 20u);  // each of the legal ones
    EXPECT_EQ(*waits.begin(), 9);
    EXPECT_EQ(*waits.rbegin(), 28);
  }
}

TEST(Gestures, AFaceBlinksWhenItHasStoppedToSpeak) {
  for (const SessionState after : {kIdle, kListening}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Gestures gestures(seed);
      for (int f = 0; f < 3; ++f) gestures.next(kSpeaking);
      EXPECT_EQ(gestures.next(after).lids, 1);
      for (int f = 0; f < 8; ++f) EXPECT_EQ(gestures.next(after).lids, 0);
    }
  }
}

TEST(Gestures, AFaceLooksAroundOnlyWhileItIsIdle) {
  for (const SessionState state : {kListening, kSpeaking})
    for (const Gesture& gesture : gestures_of(3, state, 1000)) EXPECT_EQ(gesture.gaze, 0);
  int count[3] = {}, changes = 0;
  float before = 0;
  for (const Gesture& gesture : gestures_of(3, kIdle, 10000)) {
    ++count[int(gesture.gaze) + 1];
    changes += gesture.gaze != before;
    before = gesture.gaze;
  }
  // A quarter each to the sides, for 4 to 10 latent frames; two gazes in a row may be the same.
  EXPECT_NEAR(count[0], 2500, 300);
  EXPECT_NEAR(count[2], 2500, 300);
  EXPECT_GT(changes, 700);
  EXPECT_LT(changes, 10000 / 4);
}

TEST(Gestures, TheSeedDecides) {
  EXPECT_EQ(gestures_of(5, kIdle, 200), gestures_of(5, kIdle, 200));
  EXPECT_NE(gestures_of(5, kIdle, 200), gestures_of(6, kIdle, 200));
  EXPECT_NE(gestures_of(5, kIdle, 200), gestures_of(5 + (uint64_t{1} << 32), kIdle, 200));
}

TEST(Gestures, AStreamThatBeginsAnewDoesNotBeginWithABlink) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Gestures gestures(seed);
    for (int f = 0; f < 30; ++f) {
      gestures.next(kSpeaking);
      gestures.restart();
      EXPECT_EQ(gestures.next(kListening).lids, 0) << seed << ' ' << f;
    }
  }
}

}  // namespace
}  // namespace weft
