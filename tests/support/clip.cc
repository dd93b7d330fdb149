#include "tests/support/clip.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>
#include <random>

namespace weft {
namespace {

constexpr double kPi = std::numbers::pi;

struct Named {
  std::string_view name;
  Rgb rgb;
};
constexpr Named kColourTable[] = {{"red", {220, 40, 40}},     {"green", {40, 180, 70}},
                                  {"blue", {50, 90, 225}},    {"yellow", {235, 205, 50}},
                                  {"purple", {150, 60, 190}}, {"orange", {240, 130, 30}},
                                  {"white", {240, 240, 240}}, {"cyan", {60, 205, 215}}};
constexpr Named kGroundTable[] = {{"black", {12, 12, 16}},
                                  {"gray", {110, 110, 115}},
                                  {"navy", {18, 26, 74}},
                                  {"brown", {92, 58, 32}}};
constexpr std::string_view kShapeNames[] = {"ball", "square", "triangle", "star", "ring"};
constexpr std::string_view kMotionNames[] = {"moving left", "moving right",   "moving up",
                                             "moving down", "standing still", "circling",
                                             "growing",     "shrinking"};
constexpr std::string_view kSizeNames[] = {"small", "big"};
constexpr double kRadius[] = {0.13, 0.22};  // of the short side
constexpr double kGradient = 10;            // levels from the top row to the bottom row, downwards
constexpr double kOrbit = 0.25;             // of width and height
constexpr double kPeriod = 24;              // frames
constexpr double kGrowth = 3;

// The two ends of one edge of a star of radius 1 (its tip, and the notch beside it), y up.
constexpr double kTip = 1.25, kNotch = 0.52;

// Uniform in [low, high), equal on every platform.
double uniform(std::mt19937_64& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11) * 0x1p-53);
}

struct Pose {
  double x, y;  // of the centre, fractions of width and height; wraps round
  double r;     // fraction of the short side
};

// The pose as a function of the time in frames; `total` frames see the threefold growth.
class Path {
 public:
  Path(const ClipSpec& spec, int total, uint64_t seed) : motion_(spec.motion), total_(total) {
    std::mt19937_64 random(seed);
    radius_ = kRadius[static_cast<int>(spec.size)] * uniform(random, 0.95, 1.05);
    speed_ = uniform(random, 0.35, 0.6) / kPeriod;
    phase_ = uniform(random, 0, 2 * kPi);
    const auto [low, high] = range();
    x_ = uniform(random, low, high);
    y_ = uniform(random, low, high);
    if (motion_ == Motion::kLeft || motion_ == Motion::kRight) x_ = uniform(random, 0, 1);
    if (motion_ == Motion::kUp || motion_ == Motion::kDown) y_ = uniform(random, 0, 1);
  }

  Pose at(double t) const {
    const double angle = phase_ + 2 * kPi * t / kPeriod;
    const double growth = std::pow(kGrowth, t / std::max(total_ - 1, 1) - 0.5);
    switch (motion_) {
      case Motion::kLeft:
        return {x_ - speed_ * t, y_, radius_};
      case Motion::kRight:
        return {x_ + speed_ * t, y_, radius_};
      case Motion::kUp:
        return {x_, y_ - speed_ * t, radius_};
      case Motion::kDown:
        return {x_, y_ + speed_ * t, radius_};
      case Motion::kCircling:
        return {x_ + kOrbit * std::cos(angle), y_ + kOrbit * std::sin(angle), radius_};
      case Motion::kGrowing:
        return {x_, y_, radius_ * growth};
      case Motion::kShrinking:
        return {x_, y_, radius_ / growth};
      case Motion::kStill:
        break;
    }
    return {x_, y_, radius_};
  }

 private:
  // The range of the coordinates that do not move.
  std::pair<double, double> range() const {
    switch (motion_) {
      case Motion::kCircling:
        return {0.46, 0.54};
      case Motion::kGrowing:
      case Motion::kShrinking:
        return {0.4, 0.6};
      default:
        return {0.3, 0.7};
    }
  }

  Motion motion_;
  int total_;
  double radius_, speed_, phase_, x_, y_;
};

// The distance to the nearest image of `centre` on the torus of `size` pixels.
double wrapped(double at, double centre, double size) { return std::remainder(at - centre, size); }

// Sets `part`; false where it is set to another value already.
template <class T>
bool name(std::optional<T>& part, T value) {
  if (part && *part != value) return false;
  part = value;
  return true;
}

std::optional<Motion> motion_of(std::string_view word) {
  if (word == "left") return Motion::kLeft;
  if (word == "right") return Motion::kRight;
  if (word == "up") return Motion::kUp;
  if (word == "down") return Motion::kDown;
  if (word == "still") return Motion::kStill;
  if (word == "circling") return Motion::kCircling;
  if (word == "growing") return Motion::kGrowing;
  if (word == "shrinking") return Motion::kShrinking;
  return std::nullopt;
}

}  // namespace

std::string_view to_string(Colour colour) { return kColourTable[static_cast<int>(colour)].name; }
std::string_view to_string(Ground ground) { return kGroundTable[static_cast<int>(ground)].name; }
std::string_view to_string(Shape shape) { return kShapeNames[static_cast<int>(shape)]; }
std::string_view to_string(Motion motion) { return kMotionNames[static_cast<int>(motion)]; }
std::string_view to_string(Size size) { return kSizeNames[static_cast<int>(size)]; }
Rgb rgb_of(Colour colour) { return kColourTable[static_cast<int>(colour)].rgb; }
Rgb rgb_of(Ground ground) { return kGroundTable[static_cast<int>(ground)].rgb; }

std::vector<ClipSpec> all_combinations() {
  std::vector<ClipSpec> out;
  for (int c = 0; c < kColours; ++c)
    for (int s = 0; s < kShapes; ++s)
      for (int m = 0; m < kMotions; ++m)
        for (int g = 0; g < kGrounds; ++g)
          out.push_back({Colour(c), Shape(s), Motion(m), Ground(g), Size::kBig});
  return out;
}

bool held_out(const ClipSpec& spec) {
  uint32_t hash = 0x811c9dc5u;
  const auto add = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193u;
  };
  add(to_string(spec.colour));
  add(" ");
  add(to_string(spec.shape));
  add(" ");
  add(to_string(spec.motion));
  add(" ");
  add(to_string(spec.ground));
  return hash % 10 == 0;
}

std::string prompt_of(const ClipSpec& spec) {
  std::string text = "a ";
  text += to_string(spec.size);
  text += ' ';
  text += to_string(spec.colour);
  text += ' ';
  text += to_string(spec.shape);
  text += ", ";
  text += to_string(spec.motion);
  text += " on a ";
  text += to_string(spec.ground);
  return text + " background";
}

std::optional<ClipWords> parse_prompt(std::string_view prompt) {
  ClipWords words;
  bool any = false;
  for (size_t at = 0; at < prompt.size();) {
    std::string word;
    for (; at < prompt.size() && std::isalpha(static_cast<unsigned char>(prompt[at])); ++at)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(prompt[at])));
    if (word.empty()) {
      ++at;
      continue;
    }
    if (word == "grey") word = "gray";
    bool agrees = true, known = true;
    const auto is = [&](auto value) { return to_string(value) == word; };
    if (const auto motion = motion_of(word)) {
      agrees = name(words.motion, *motion);
    } else if (is(Size::kSmall) || is(Size::kBig)) {
      agrees = name(words.size, is(Size::kBig) ? Size::kBig : Size::kSmall);
    } else {
      known = false;
      for (int i = 0; i < kColours; ++i)
        if (is(Colour(i))) known = true, agrees = name(words.colour, Colour(i));
      for (int i = 0; i < kGrounds; ++i)
        if (is(Ground(i))) known = true, agrees = name(words.ground, Ground(i));
      for (int i = 0; i < kShapes; ++i)
        if (is(Shape(i))) known = true, agrees = name(words.shape, Shape(i));
    }
    if (!agrees) return std::nullopt;
    any |= known;
  }
  if (!any) return std::nullopt;
  return words;
}

double coverage(Shape shape, double dx, double dy, double r) {
  const double distance = std::hypot(dx, dy);
  double inside = 0;  // signed distance to the edge in pixels, positive inside
  switch (shape) {
    case Shape::kBall:
      inside = r - distance;
      break;
    case Shape::kSquare:
      inside = 0.9 * r - std::max(std::abs(dx), std::abs(dy));
      break;
    case Shape::kRing:
      inside = 0.23 * r - std::abs(distance - 0.8 * r);
      break;
    case Shape::kTriangle: {  // point up, circumradius 1.2 r, lowered so that it sits in the middle
      const double y = dy - 0.15 * r;
      inside = 0.6 * r - std::max(y, std::abs(dx) * std::sqrt(3.0) / 2 - y / 2);
      break;
    }
    case Shape::kStar: {  // folded into the half sector from a tip (up) to the notch beside it
      constexpr double kSector = 2 * kPi / 5;
      const double angle = std::abs(std::remainder(std::atan2(dx, -dy), kSector));
      const double notch_x = kNotch * std::sin(kPi / 5), notch_y = kNotch * std::cos(kPi / 5);
      const double length = std::hypot(notch_x, kTip - notch_y);
      const double normal_x = (kTip - notch_y) / length, normal_y = notch_x / length;
      inside = r * normal_y * kTip -
               distance * (normal_x * std::sin(angle) + normal_y * std::cos(angle));
      break;
    }
  }
  return std::clamp(inside + 0.5, 0.0, 1.0);
}

std::vector<Frame> draw_clip(const ClipSpec& spec, const ClipCanvas& canvas, uint64_t seed) {
  const int total = canvas.total > 0 ? canvas.total : canvas.first + canvas.frames;
  const Path path(spec, total, seed);
  const Rgb shape = rgb_of(spec.colour), ground = rgb_of(spec.ground);
  const int side = std::min(canvas.width, canvas.height);
  std::vector<Frame> frames;
  for (int t = 0; t < canvas.frames; ++t) {
    const Pose pose = path.at(canvas.first + t);
    Frame frame(canvas.width, canvas.height);
    for (int y = 0; y < canvas.height; ++y) {
      const double shade = kGradient * (0.5 - (y + 0.5) / canvas.height);
      const double dy = wrapped(y + 0.5, pose.y * canvas.height, canvas.height);
      for (int x = 0; x < canvas.width; ++x) {
        const double dx = wrapped(x + 0.5, pose.x * canvas.width, canvas.width);
        const double cover = coverage(spec.shape, dx, dy, pose.r * side);
        for (int c = 0; c < 3; ++c) {
          const double under = ground[c] + shade;
          frame.at(x, y)[c] = static_cast<uint8_t>(
              std::clamp(under + (shape[c] - under) * cover + 0.5, 0.0, 255.0));
        }
      }
    }
    frames.push_back(std::move(frame));
  }
  return frames;
}

}  // namespace weft
