#pragma once
// The vocabulary of the pocket model: what its clips show, and their prompts (models/pocket).
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// All colour x shape x motion x ground combinations, in the order of the enumerators.
std::vector<ClipSpec> all_combinations();

// Returns true if the FNV-1a hash (32 bit) of "colour shape motion ground" is a multiple of 10.
// Such a combination, a tenth of all, is never trained on.
bool held_out(const ClipSpec& spec);

// Clips to measure a model by, drawn from `seed`: trained and held-out combinations in turn.
std::vector<ClipSpec> clips_in_turn(int count, uint64_t seed);

// The parts that a prompt names. A part without a value is free.
struct ClipWords {
  std::optional<Colour> colour;
  std::optional<Shape> shape;
  std::optional<Motion> motion;
  std::optional<Ground> ground;
  std::optional<Size> size;
};

}  // namespace weft::pocket
