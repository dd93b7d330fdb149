// Seams and drift: closed forms, and a slow reference.
#include "tests/bench/measure/frame_drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace weft {
namespace {

Frame flat(int red, int green, int blue) {
  Frame frame(8, 4);
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 8; ++x) {
      uint8_t* pixel = frame.at(x, y);
      pixel[0] = static_cast<uint8_t>(red);
      pixel[1] = static_cast<uint8_t>(green);
      pixel[2] = static_cast<uint8_t>(blue);
    }
  return frame;
}

// Brightens by 3 levels per frame, and by 12 more where a block begins.
TEST(FrameDrift, SeamsOfAVideoThatJumps) {
  const std::vector<int64_t> borders{4, 7};
  std::vector<Frame> frames;
  for (int i = 0, level = 10; i < 10; ++i) {
    if (i > 0) level += 3 + (i == 4 || i == 7 ? 12 : 0);
    frames.push_back(flat(level, level, level));
  }
  const std::vector<double> changes = frame_changes(frames);
  ASSERT_EQ(changes.size(), 9u);
  const Seams seams = seams_of(changes, borders, 3);
  EXPECT_DOUBLE_EQ(seams.at_borders, 15);
  EXPECT_DOUBLE_EQ(seams.at_latents, 3);
  EXPECT_DOUBLE_EQ(seams.inside, 3);
  // The first block has the levels 10, 13, 16, 19; the last one begins with 55.
  const ChannelStatistics drift = drift_of(frames, borders);
  for (int c = 0; c < 3; ++c) {
    EXPECT_DOUBLE_EQ(drift.mean[c], 58 - 14.5);
    EXPECT_NEAR(drift.deviation[c], std::sqrt(11.25) - std::sqrt(6), 1e-12);
  }
}

// Frames 1, 4, 7 and 10 begin latent frames of three; a block begins with 7.
TEST(FrameDrift, LatentFramesBeginWithAStepOfTheirOwn) {
  const std::vector<double> changes{8, 1, 2, 10, 3, 1, 40, 2, 1, 6};
  const Seams seams = seams_of(changes, std::vector<int64_t>{7}, 3);
  EXPECT_DOUBLE_EQ(seams.at_borders, 40);
  EXPECT_DOUBLE_EQ(seams.at_latents, 8);
  EXPECT_DOUBLE_EQ(seams.inside, 34.0 / 9);
}

TEST(FrameDrift, ChannelsAreApart) {
  const std::vector<Frame> frames{flat(10, 20, 30), flat(10, 26, 30), flat(10, 20, 90)};
  EXPECT_DOUBLE_EQ(frame_changes(frames)[0], 2);
  EXPECT_DOUBLE_EQ(frame_changes(frames)[1], 22);
  const ChannelStatistics drift = drift_of(frames, std::vector<int64_t>{2});
  EXPECT_DOUBLE_EQ(drift.mean[0], 0);
  EXPECT_DOUBLE_EQ(drift.mean[1], 3);
  EXPECT_DOUBLE_EQ(drift.mean[2], 60);
  EXPECT_DOUBLE_EQ(drift.deviation[1], 3);
}

TEST(FrameDrift, NoBordersAndOneFrame) {
  const std::vector<Frame> one{flat(1, 2, 3)};
  EXPECT_TRUE(frame_changes(one).empty());
  EXPECT_EQ(seams_of({}, {}, 4).at_borders, 0);
  EXPECT_EQ(drift_of(one, {}).mean[2], 0);
}

// The definition of mean and standard deviation, in two passes.
TEST(FrameDrift, StatisticsAreThoseOfTheDefinition) {
  std::mt19937 random(5);
  std::vector<Frame> frames;
  for (int i = 0; i < 3; ++i) {
    frames.emplace_back(13, 7);
    for (uint8_t& level : frames.back().rgb) level = static_cast<uint8_t>(random());
  }
  const ChannelStatistics fast = channel_statistics(frames);
  for (int c = 0; c < 3; ++c) {
    double sum = 0, squares = 0, count = 0;
    for (const Frame& frame : frames)
      for (size_t i = c; i < frame.rgb.size(); i += 3, ++count) sum += frame.rgb[i];
    for (const Frame& frame : frames)
      for (size_t i = c; i < frame.rgb.size(); i += 3)
        squares += (frame.rgb[i] - sum / count) * (frame.rgb[i] - sum / count);
    EXPECT_NEAR(fast.mean[c], sum / count, 1e-9);
    EXPECT_NEAR(fast.deviation[c], std::sqrt(squares / count), 1e-9);
  }
}

}  // namespace
}  // namespace weft
