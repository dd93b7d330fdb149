#include "tests/support/clip.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <numbers>
#include <random>

#include "tests/bench/pocket/shape_fit.h"

namespace weft::pocket {
namespace {

constexpr double kPi = std::numbers::pi;

constexpr double kRadius[] = {0.16, 0.22};  // of the short side
constexpr double kGradient = 10;            // levels from the top row to the bottom row, downwards
constexpr double kOrbit = 0.25;             // of width and height
constexpr double kPeriod = 24;              // frames
constexpr double kGrowth = 3;

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

SampleClip sample_clip(int i) {
  const std::vector<ClipSpec> all = all_combinations();
  SampleClip out{all[static_cast<size_t>(i) * 197 % all.size()], {}};
  out.spec.size = Size(i % 2);
  out.frames = draw_clip(out.spec, {}, static_cast<uint64_t>(i));
  Frame& torn = out.frames[9];
  const size_t row = size_t{3} * torn.width;
  if (i % 3 == 2)  // the second half of every row is like the row's first pixel
    for (int y = 0; y < torn.height; ++y)
      for (size_t x = row / 2; x < row; ++x) torn.rgb[y * row + x] = torn.rgb[y * row + x % 3];
  return out;
}

}  // namespace weft::pocket
