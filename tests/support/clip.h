#pragma once
// The clips that the pocket model is trained to draw: their prompts, the hash that keeps a tenth of
// them out of the training, and an exact drawing of each. The geometry is that of models/pocket/.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/media/frame.h"

namespace weft {

enum class Colour : uint8_t { kRed, kGreen, kBlue, kYellow, kPurple, kOrange, kWhite, kCyan };
enum class Ground : uint8_t { kBlack, kGray, kNavy, kBrown };
enum class Shape : uint8_t { kBall, kSquare, kTriangle, kStar, kRing };
enum class Motion : uint8_t { kLeft, kRight, kUp, kDown, kStill, kCircling, kGrowing, kShrinking };
enum class Size : uint8_t { kSmall, kBig };

constexpr int kColours = 8, kGrounds = 4, kShapes = 5, kMotions = 8;

std::string_view to_string(Colour colour);
std::string_view to_string(Ground ground);
std::string_view to_string(Shape shape);
std::string_view to_string(Motion motion);  // "moving left", ...
std::string_view to_string(Size size);

using Rgb = std::array<double, 3>;
Rgb rgb_of(Colour colour);
Rgb rgb_of(Ground ground);

struct ClipSpec {
  Colour colour = Colour::kRed;
  Shape shape = Shape::kBall;
  Motion motion = Motion::kStill;
  Ground ground = Ground::kBlack;
  Size size = Size::kBig;
};

// All colour x shape x motion x ground combinations, in the order of the enumerators.
std::vector<ClipSpec> all_combinations();

// Returns true if the FNV-1a hash (32 bit) of "colour shape motion ground" is a multiple of 10.
// Such a combination is never trained on.
bool held_out(const ClipSpec& spec);

// Returns a prompt such as "a big red ball, moving left on a navy background".
std::string prompt_of(const ClipSpec& spec);

// The parts that a prompt names. A part without a value is free.
struct ClipWords {
  std::optional<Colour> colour;
  std::optional<Shape> shape;
  std::optional<Motion> motion;
  std::optional<Ground> ground;
  std::optional<Size> size;
};

// Parses any wording of the grammar. Returns nullopt if a part is named twice with different
// values, or if no part is named.
std::optional<ClipWords> parse_prompt(std::string_view prompt);

struct ClipCanvas {
  int width = 128, height = 128;
  int frames = 25;
  int first = 0;  // frames already gone by when the clip begins
  int total = 0;  // frames over which growth is threefold; 0: first + frames
};

// Draws a clip. Free choices (place, speed, phase) depend on the seed.
std::vector<Frame> draw_clip(const ClipSpec& spec, const ClipCanvas& canvas, uint64_t seed);

// Returns the fraction of a pixel that a shape covers. The pixel's middle is (dx, dy) pixels from
// the shape's centre (y down), and r is the radius in pixels.
double coverage(Shape shape, double dx, double dy, double r);

}  // namespace weft
