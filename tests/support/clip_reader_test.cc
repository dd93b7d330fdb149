#include "tests/support/clip_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace weft {
namespace {

// Reads every `stride`-th combination, sizes in turn, after `spoil`. Each part must be read right
// in at least `least` of the clips.
template <class Spoil>
void expect_read(size_t stride, const ClipCanvas& canvas, double least, Spoil&& spoil) {
  const auto all = all_combinations();
  int n = 0, colour = 0, ground = 0, shape = 0, motion = 0;
  for (size_t i = 0; i < all.size(); i += stride, ++n) {
    ClipSpec spec = all[i];
    spec.size = Size(n % 2);
    auto frames = draw_clip(spec, canvas, 1000 + i);
    spoil(frames);
    const ClipScore s =
        score(read_clip(frames), {spec.colour, spec.shape, spec.motion, spec.ground, {}});
    colour += s.colour;
    ground += s.ground;
    shape += s.shape;
    motion += s.motion;
    EXPECT_TRUE(s.colour && s.ground && s.shape && s.motion)
        << prompt_of(spec) << ", seed " << 1000 + i;
  }
  EXPECT_GE(colour, least * n);
  EXPECT_GE(ground, least * n);
  EXPECT_GE(shape, least * n);
  EXPECT_GE(motion, least * n);
}

void nothing(std::vector<Frame>&) {}

// A 5x5 box blur and noise of 8 levels: about what a small autoencoder leaves at its worst.
void blur_and_noise(std::vector<Frame>& frames) {
  std::mt19937 random(11);
  std::normal_distribution<double> noise(0, 8);
  for (Frame& frame : frames) {
    Frame out(frame.width, frame.height);
    for (int y = 0; y < frame.height; ++y)
      for (int x = 0; x < frame.width; ++x)
        for (int c = 0; c < 3; ++c) {
          double sum = 0;
          for (int v = -2; v <= 2; ++v)
            for (int u = -2; u <= 2; ++u)
              sum += frame.at(std::clamp(x + u, 0, frame.width - 1),
                              std::clamp(y + v, 0, frame.height - 1))[c];
          out.at(x, y)[c] = static_cast<uint8_t>(std::clamp(sum / 25 + noise(random), 0.0, 255.0));
        }
    frame = out;
  }
}

// Strides are prime to the sizes of the product, so that all values meet.
TEST(ClipReader, TrueClips) { expect_read(23, {}, 0.99, nothing); }
TEST(ClipReader, OtherSizesAndLengths) {
  expect_read(131, {96, 128, 25, 0, 0}, 0.99, nothing);
  expect_read(137, {160, 160, 13, 0, 0}, 0.99, nothing);
  expect_read(211, {128, 96, 61, 0, 0}, 0.99, nothing);
}
TEST(ClipReader, BlurAndNoise) { expect_read(149, {}, 0.99, blur_and_noise); }

TEST(ClipReader, AStillPictureHasNoMotion) {
  const ClipSpec spec{Colour::kWhite, Shape::kStar, Motion::kLeft, Ground::kGray, Size::kSmall};
  const ClipReading reading = read_clip(draw_clip(spec, {128, 128, 1, 0, 0}, 5));
  EXPECT_EQ(reading.colour, spec.colour);
  EXPECT_EQ(reading.shape, spec.shape);
  EXPECT_EQ(reading.ground, spec.ground);
  EXPECT_FALSE(reading.motion);
}

TEST(ClipReader, AnEmptyGroundShowsNothing) {
  std::vector<Frame> frames(25, Frame(64, 64));
  for (Frame& frame : frames) std::ranges::fill(frame.rgb, uint8_t{14});
  const ClipReading reading = read_clip(frames);
  EXPECT_EQ(reading.ground, Ground::kBlack);
  EXPECT_FALSE(reading.colour || reading.shape || reading.motion);
}

}  // namespace
}  // namespace weft
