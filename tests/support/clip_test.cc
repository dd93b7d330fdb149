#include "tests/support/clip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/bench/pocket/shape_fit.h"

namespace weft::pocket {
namespace {

// Counted and named by a second implementation of the hash.
TEST(Clip, HeldOutIsATenthAndFollowsTheHash) {
  const auto all = all_combinations();
  ASSERT_EQ(all.size(), 8u * 5 * 8 * 4);
  EXPECT_EQ(std::ranges::count_if(all, held_out), 118);
  EXPECT_FALSE(held_out({Colour::kRed, Shape::kBall, Motion::kLeft, Ground::kBlack, Size::kBig}));
  const auto first = std::ranges::find_if(all, held_out);
  EXPECT_EQ(prompt_of(*first), "a big red ball, moving right on a black background");
}

TEST(Clip, PromptsAreReadBack) {
  for (const ClipSpec& spec : all_combinations()) {
    const auto words = parse_prompt(prompt_of(spec));
    ASSERT_TRUE(words);
    EXPECT_EQ(words->colour, spec.colour);
    EXPECT_EQ(words->shape, spec.shape);
    EXPECT_EQ(words->motion, spec.motion);
    EXPECT_EQ(words->ground, spec.ground);
    EXPECT_EQ(words->size, spec.size);
  }
}

TEST(Clip, OtherWordings) {
  const auto words = parse_prompt("An orange star is standing still, on grey background.");
  ASSERT_TRUE(words);
  EXPECT_EQ(words->colour, Colour::kOrange);
  EXPECT_EQ(words->shape, Shape::kStar);
  EXPECT_EQ(words->motion, Motion::kStill);
  EXPECT_EQ(words->ground, Ground::kGray);
  EXPECT_FALSE(words->size);
  const auto few = parse_prompt("a ring");
  ASSERT_TRUE(few);
  EXPECT_FALSE(few->colour || few->motion || few->ground);
  EXPECT_FALSE(parse_prompt("a red blue ball"));
  EXPECT_FALSE(parse_prompt("a cat"));
  EXPECT_FALSE(parse_prompt(""));
}

// The area of each shape against its closed form, as a check of the drawing itself.
TEST(Clip, ShapesHaveTheirAreas) {
  const double r = 40, pi = std::acos(-1.0);
  const double side = 1.2 * std::sqrt(3.0);  // of the triangle of circumradius 1.2
  const double areas[] = {pi, 1.8 * 1.8, std::sqrt(3.0) / 4 * side * side,
                          5 * 1.25 * 0.62 * std::sin(pi / 5), pi * (1.06 * 1.06 - 0.5 * 0.5)};
  for (int s = 0; s < kShapes; ++s) {
    double area = 0;
    for (int y = -64; y < 64; ++y)
      for (int x = -64; x < 64; ++x) area += coverage(Shape(s), x + 0.5, y + 0.5, r);
    // The half-pixel ramp is exact along straight edges; corners lose a fraction of a pixel each.
    EXPECT_NEAR(area / (r * r), areas[s], 0.01 * areas[s]) << to_string(Shape(s));
  }
}

TEST(Clip, AWindowIsTheSameMotionLater) {
  const ClipSpec spec{Colour::kCyan, Shape::kRing, Motion::kCircling, Ground::kNavy, Size::kSmall};
  const auto whole = draw_clip(spec, {96, 128, 25, 0, 0}, 3);
  const auto window = draw_clip(spec, {96, 128, 9, 8, 0}, 3);
  ASSERT_EQ(window.size(), 9u);
  for (size_t t = 0; t < window.size(); ++t) EXPECT_EQ(window[t].rgb, whole[t + 8].rgb);
  EXPECT_NE(draw_clip(spec, {96, 128, 1, 0, 0}, 4)[0].rgb, whole[0].rgb);
}

}  // namespace
}  // namespace weft::pocket
