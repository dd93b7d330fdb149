#include "tests/bench/pocket/clip_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/bench/pocket/shape_fit.h"
#include "tests/support/clip.h"

namespace weft::pocket {
namespace {

// Reads every `stride`-th combination, sizes in turn, after `spoil`. Each part must be read right
// in at least `least` of the clips, and no view may overlap with its shape by less than `whole`.
template <class Spoil>
void expect_read(size_t stride, const ClipCanvas& canvas, double least, double whole,
                 Spoil&& spoil) {
  const auto all = all_combinations();
  int n = 0, colour = 0, ground = 0, shape = 0, motion = 0;
  for (size_t i = 0; i < all.size(); i += stride, ++n) {
    ClipSpec spec = all[i];
    spec.size = Size(n % 2);
    auto frames = draw_clip(spec, canvas, 1000 + i);
    spoil(frames);
    const ClipReading reading = read_clip(frames);
    const ClipScore s = score(reading, {spec.colour, spec.shape, spec.motion, spec.ground, {}});
    EXPECT_EQ(reading.views.size(), 6u);
    for (const View& view : reading.views)
      EXPECT_GE(view.overlap, whole)
          << prompt_of(spec) << ", seed " << 1000 + i << ", frame " << view.frame;
    colour += s.colour;
    ground += s.ground;
    shape += s.shape;
    motion += s.motion;
    EXPECT_TRUE(s.colour && s.ground && s.shape && s.motion && s.every_view && !s.torn)
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
TEST(ClipReader, TrueClips) { expect_read(23, {}, 0.99, 0.93, nothing); }
TEST(ClipReader, OtherSizesAndLengths) {
  expect_read(131, {96, 128, 25, 0, 0}, 0.99, 0.9, nothing);
  expect_read(137, {160, 160, 13, 0, 0}, 0.99, 0.9, nothing);
  expect_read(211, {128, 96, 61, 0, 0}, 0.99, 0.9, nothing);
}
TEST(ClipReader, BlurAndNoise) { expect_read(149, {}, 0.99, 0.75, blur_and_noise); }

// Half of the shape slips sideways by its radius.
void slip(Frame& frame) {
  const Frame whole = frame;
  for (int y = frame.height / 2; y < frame.height; ++y)
    for (int x = 0; x < frame.width; ++x)
      std::copy_n(whole.at((x + 28) % frame.width, y), 3, frame.at(x, y));
}

// The whole frame turns gray, and the shape nearly so.
void fade(Frame& frame) {
  for (uint8_t& level : frame.rgb) level = static_cast<uint8_t>((level + 7 * 110) / 8);
}

// Everything on the right half is gone.
void tear_off(Frame& frame) {
  for (int y = 0; y < frame.height; ++y)
    for (int x = frame.width / 2; x < frame.width; ++x)
      std::copy_n(frame.at(0, 0), 3, frame.at(x, y));
}

// A broad strip of the shape once more beside it.
void add_piece(Frame& frame) {
  const Frame whole = frame;
  for (int y = 0; y < frame.height; ++y)
    for (int x = 0; x < 40; ++x) std::copy_n(whole.at(x + 44, y), 3, frame.at(x, y));
}

// One spoilt view of six is enough to call a clip torn, whatever the shape.
TEST(ClipReader, OneTornViewIsFound) {
  const struct {
    const char* name;
    void (*spoil)(Frame&);
    std::vector<Shape> shapes;
  } cases[] = {{"slip", slip, {Shape::kBall, Shape::kSquare, Shape::kRing}},
               {"fade", fade, {Shape::kBall, Shape::kTriangle, Shape::kStar}},
               {"tear_off", tear_off, {Shape::kRing}},
               {"add_piece", add_piece, {Shape::kBall, Shape::kTriangle, Shape::kStar}}};
  for (const auto& [name, spoil, shapes] : cases)
    for (const Shape shape : shapes)
      for (const int torn : {0, 9}) {
        const ClipSpec spec{Colour::kRed, shape, Motion::kGrowing, Ground::kNavy, Size::kBig};
        // A growing shape stays near the middle of the frame; these are 25 frames at one size.
        auto frames = std::vector<Frame>(25, draw_clip(spec, {128, 128, 3, 11, 25}, 77)[1]);
        EXPECT_FALSE(read_clip(frames).torn()) << name;
        spoil(frames[static_cast<size_t>(torn)]);
        const ClipReading reading = read_clip(frames);
        EXPECT_TRUE(reading.torn()) << name << " of a " << to_string(shape) << " in frame " << torn;
        for (const View& view : reading.views)
          EXPECT_EQ(view.overlap < kTorn, view.frame == torn)
              << name << " of a " << to_string(shape) << ": " << view.overlap;
        EXPECT_EQ(reading.shape, shape);  // five whole views outvote it
      }
}

// A ring whose hole has closed is a ball in that view, whole as it is.
TEST(ClipReader, AViewOfAnotherShapeIsNoticed) {
  const ClipSpec ring{Colour::kCyan, Shape::kRing, Motion::kStill, Ground::kBlack, Size::kBig};
  ClipSpec ball = ring;
  ball.shape = Shape::kBall;
  auto frames = draw_clip(ring, {}, 3);
  frames[9] = draw_clip(ball, {}, 3)[9];
  const ClipReading reading = read_clip(frames);
  const ClipScore s = score(reading, {ring.colour, ring.shape, ring.motion, ring.ground, {}});
  EXPECT_TRUE(s.shape);
  EXPECT_FALSE(s.every_view);
  EXPECT_FALSE(s.torn);
}

TEST(ClipReader, AStillPictureHasNoMotion) {
  const ClipSpec spec{Colour::kWhite, Shape::kStar, Motion::kLeft, Ground::kGray, Size::kSmall};
  const ClipReading reading = read_clip(draw_clip(spec, {128, 128, 1, 0, 0}, 5));
  EXPECT_EQ(reading.colour, spec.colour);
  EXPECT_EQ(reading.shape, spec.shape);
  EXPECT_EQ(reading.ground, spec.ground);
  EXPECT_EQ(reading.views.size(), 1u);
  EXPECT_FALSE(reading.motion || reading.torn());
}

TEST(ClipReader, AnEmptyGroundShowsNothing) {
  std::vector<Frame> frames(25, Frame(64, 64));
  for (Frame& frame : frames) std::ranges::fill(frame.rgb, uint8_t{14});
  const ClipReading reading = read_clip(frames);
  EXPECT_EQ(reading.ground, Ground::kBlack);
  EXPECT_FALSE(reading.colour || reading.shape || reading.motion);
  EXPECT_TRUE(reading.torn());
}

template <class T>
nlohmann::json named(const std::optional<T>& value) {
  return value ? nlohmann::json(to_string(*value)) : nullptr;
}

// The model's own reader has written down what it reads from the sample clips.
TEST(ClipReader, ReadsWhatTheModelsOwnReaderReads) {
  std::ifstream file("tests/support/python_reader.jsonl");
  int clips = 0, torn = 0;
  for (std::string line; std::getline(file, line); ++clips) {
    const nlohmann::json theirs = nlohmann::json::parse(line);
    const auto [spec, frames] = sample_clip(clips);
    const ClipReading reading = read_clip(frames);
    EXPECT_EQ(theirs.at("ground"), to_string(reading.ground)) << line;
    EXPECT_EQ(theirs.at("colour"), named(reading.colour)) << line;
    EXPECT_EQ(theirs.at("shape"), named(reading.shape)) << line;
    EXPECT_EQ(reading.motion, spec.motion) << line;
    // Theirs takes the place of what is left of a torn frame for motion.
    if (!reading.torn()) {
      EXPECT_EQ(theirs.at("motion"), named(reading.motion)) << line;
    }
    ASSERT_EQ(reading.views.size(), theirs.at("views").size());
    for (size_t i = 0; i < reading.views.size(); ++i) {
      const double overlap = theirs.at("views")[i];
      EXPECT_NEAR(reading.views[i].overlap, overlap, 0.05) << line << ", view " << i;
      if (overlap > 0.8) {
        EXPECT_EQ(theirs.at("kinds")[i], to_string(reading.views[i].shape)) << line << i;
      }
    }
    torn += reading.torn();
    // Another word than the clip's is not read from it.
    const ClipWords wrong{Colour((int(spec.colour) + 1) % kColours),
                          Shape((int(spec.shape) + 1) % kShapes),
                          Motion((int(spec.motion) + 1) % kMotions),
                          Ground((int(spec.ground) + 1) % kGrounds),
                          {}};
    const ClipScore s = score(reading, wrong);
    EXPECT_FALSE(s.colour || s.shape || s.motion || s.ground || s.every_view) << line;
  }
  EXPECT_EQ(clips, 40);
  EXPECT_GT(torn, 5);
  EXPECT_LT(torn, 14);
}

}  // namespace
}  // namespace weft::pocket
