// The sound of a client: gaps, late packets, and turns.
#include "apps/live/sound_inbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace weft {
namespace {

constexpr int kRate = 16000;
constexpr MediaInstant kNow = std::chrono::seconds(1);
constexpr MediaInstant kPatience = std::chrono::milliseconds(1);

// 100 ms of a tone, or of silence, at this time in milliseconds.
SoundPacket piece(int64_t time_ms, float level = 0.5f, uint16_t flags = 0) {
  return {.header = {.type = PacketType::kSound,
                     .flags = flags,
                     .length = kRate / 10,
                     .time_us = time_ms * 1000},
          .samples = std::vector<float>(kRate / 10, level)};
}

struct Turn {
  std::vector<float> samples;
  std::string text, caption;
};

// All that waits, as turns. The last one may be open: then it ends by patience.
std::vector<Turn> turns_of(SoundInbox& inbox) {
  std::vector<Turn> turns;
  Turn open;
  while (!inbox.empty() || !open.samples.empty()) {
    const std::optional<Utterance> next = inbox.next(kPatience);
    if (!next) break;
    open.samples.insert(open.samples.end(), next->samples.begin(), next->samples.end());
    if (!next->text.empty() || !next->caption.empty())
      turns.push_back({{}, next->text, next->caption});
    if (next->ends_turn) turns.push_back(std::exchange(open, {}));
  }
  return turns;
}

TEST(SoundInbox, PacketsInOrderAreOneTurn) {
  SoundInbox inbox(kRate);
  for (int k = 0; k < 5; ++k) EXPECT_TRUE(inbox.push(piece(100 * k, 0.1f * float(k + 1)), kNow));
  EXPECT_TRUE(inbox.push(piece(500, 0.5f, kLastFlag), kNow));
  const std::vector<Turn> turns = turns_of(inbox);
  ASSERT_EQ(turns.size(), 1u);
  ASSERT_EQ(turns[0].samples.size(), 6u * kRate / 10);
  for (int k = 0; k < 5; ++k) EXPECT_EQ(turns[0].samples[k * kRate / 10], 0.1f * float(k + 1));
  EXPECT_EQ(inbox.counts().gaps, 0);
  EXPECT_EQ(inbox.counts().late, 0);
}

TEST(SoundInbox, AGapBecomesSilence) {
  SoundInbox inbox(kRate);
  inbox.push(piece(0), kNow);
  inbox.push(piece(250, 0.5f, kLastFlag), kNow);
  const std::vector<Turn> turns = turns_of(inbox);
  ASSERT_EQ(turns.size(), 1u);
  ASSERT_EQ(turns[0].samples.size(), size_t(kRate) * 35 / 100);
  for (size_t k = 0; k < turns[0].samples.size(); ++k)
    ASSERT_EQ(turns[0].samples[k], k < 1600 || k >= 4000 ? 0.5f : 0.0f) << k;
  EXPECT_EQ(inbox.counts().gaps, 1);
  EXPECT_EQ(inbox.counts().filled_samples, 2400);
}

TEST(SoundInbox, ALongGapEndsTheTurn) {
  SoundInbox inbox(kRate);
  inbox.push(piece(0), kNow);
  inbox.push(piece(1200), kNow);
  EXPECT_EQ(turns_of(inbox).size(), 2u);
}

TEST(SoundInbox, LatePacketsAreDroppedAndOverlapsAreCut) {
  SoundInbox inbox(kRate);
  inbox.push(piece(0, 0.1f), kNow);
  inbox.push(piece(100, 0.2f), kNow);
  inbox.push(piece(0, 0.9f), kNow);               // late by two packets
  inbox.push(piece(100, 0.9f), kNow);             // twice
  inbox.push(piece(150, 0.3f, kLastFlag), kNow);  // half of it is new
  const std::vector<Turn> turns = turns_of(inbox);
  ASSERT_EQ(turns.size(), 1u);
  ASSERT_EQ(turns[0].samples.size(), 4000u);
  EXPECT_EQ(turns[0].samples[1599], 0.1f);
  EXPECT_EQ(turns[0].samples[3199], 0.2f);
  EXPECT_EQ(turns[0].samples[3200], 0.3f);
  EXPECT_EQ(inbox.counts().late, 2);
}

TEST(SoundInbox, SilenceEndsATurnAndIsDroppedBetweenTurns) {
  SoundInbox inbox(kRate);
  int64_t time = 0;
  const auto push = [&](int count, float level) {
    for (int k = 0; k < count; ++k, time += 100) inbox.push(piece(time, level), kNow);
  };
  push(10, 0);
  push(3, 0.5f);
  push(10, 0);
  push(2, 0.25f);
  push(5, 0);
  const std::vector<Turn> turns = turns_of(inbox);
  ASSERT_EQ(turns.size(), 2u);
  // A silent packet in front, and half a second after.
  EXPECT_EQ(turns[0].samples.size(), (1u + 3 + 5) * kRate / 10);
  EXPECT_EQ(turns[0].samples[1599], 0);
  EXPECT_EQ(turns[0].samples[1600], 0.5f);
  EXPECT_EQ(turns[1].samples.size(), (1u + 2 + 5) * kRate / 10);
  EXPECT_EQ(inbox.counts().gaps, 0);
}

TEST(SoundInbox, ATurnWithoutNewSoundEnds) {
  SoundInbox inbox(kRate);
  inbox.push(piece(0), kNow);
  EXPECT_FALSE(inbox.next(kPatience)->ends_turn);
  EXPECT_TRUE(inbox.next(kPatience)->ends_turn);
}

TEST(SoundInbox, TextsAndCaptionsKeepTheirPlace) {
  SoundInbox inbox(kRate);
  inbox.push(piece(0), kNow);
  EXPECT_TRUE(inbox.push("hello", kNow));
  EXPECT_TRUE(inbox.push_caption("a happy face", kNow));
  EXPECT_TRUE(inbox.push("again", kNow));
  const std::vector<Turn> turns = turns_of(inbox);
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_EQ(turns[0].samples.size(), 1600u);
  EXPECT_EQ(turns[1].text, "hello");
  EXPECT_EQ(turns[2].caption, "a happy face");
  EXPECT_EQ(turns[3].text, "again");
}

TEST(SoundInbox, WhatHasNoRoomIsRefused) {
  SoundInbox inbox(kRate);
  for (int k = 0; k < 300; ++k) ASSERT_TRUE(inbox.push(piece(100 * k), kNow)) << k;
  EXPECT_FALSE(inbox.push(piece(30'000), kNow));
  for (size_t k = 0; k < SoundInbox::kMostTexts; ++k) ASSERT_TRUE(inbox.push("text", kNow));
  EXPECT_FALSE(inbox.push("text", kNow));
  EXPECT_FALSE(inbox.push_caption("caption", kNow));
  EXPECT_EQ(inbox.counts().refused, 3);
  inbox.next(kPatience);
  EXPECT_TRUE(inbox.push(piece(30'100), kNow));
}

TEST(SoundInbox, DropKeepsCaptionsAlone) {
  SoundInbox inbox(kRate);
  inbox.push(piece(0), kNow);
  inbox.push("text", kNow);
  inbox.push_caption("caption", kNow);
  const int before = inbox.drops();
  inbox.drop();
  EXPECT_EQ(inbox.drops(), before + 1);
  const std::optional<Utterance> next = inbox.next(kPatience);
  EXPECT_EQ(next->caption, "caption");
  EXPECT_TRUE(inbox.empty());
  inbox.push(piece(5000, 0.5f, kLastFlag), kNow);
  const Utterance first = *inbox.next(kPatience);
  EXPECT_EQ(first.drops, inbox.drops());
  EXPECT_EQ(first.samples.size(), 1600u);
}

TEST(SoundInbox, CloseEndsTheWait) {
  SoundInbox inbox(kRate);
  std::jthread closes([&] { inbox.close(); });
  EXPECT_FALSE(inbox.next(std::chrono::minutes(1)).has_value());
}

}  // namespace
}  // namespace weft
