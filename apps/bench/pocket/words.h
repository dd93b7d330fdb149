#pragma once
// The vocabulary of the pocket model: what its clips show, and their prompts (models/pocket).
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::pocket {

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

}  // namespace weft::pocket
