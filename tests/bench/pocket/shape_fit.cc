#include "tests/bench/pocket/shape_fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace weft::pocket {
namespace {

// The two ends of one edge of a star of radius 1 (its tip, and the notch beside it), y up.
constexpr double kTip = 1.25, kNotch = 0.62;

struct Place {
  double x, y, r;  // centre and radius in pixels
};

// No clip has a larger shape (a big one grown to its end has 0.4), as a fraction of the short side.
// Without a limit, a frame that stands out all over would be a perfect square.
constexpr double kLargest = 0.42;

// The area of a shape of radius 1, counted from its drawing.
double unit_area(Shape shape) {
  static const std::array<double, kShapes> areas = [] {
    constexpr int kRadius = 100, kHalf = 130;  // the star's tip is at 1.25 radii
    std::array<double, kShapes> out{};
    for (int s = 0; s < kShapes; ++s)
      for (int y = -kHalf; y < kHalf; ++y)
        for (int x = -kHalf; x < kHalf; ++x)
          out[s] += coverage(Shape(s), x + 0.5, y + 0.5, kRadius) / (kRadius * kRadius);
    return out;
  }();
  return areas[static_cast<size_t>(shape)];
}

double shape_overlap(const Silhouette& silhouette, Shape shape, const Place& place) {
  int both = 0;
  for (const auto& [x, y] : silhouette.pixels) {
    const double dx = around(x - place.x, silhouette.width);
    const double dy = around(y - place.y, silhouette.height);
    if (coverage(shape, dx, dy, place.r) > 0.5) ++both;
  }
  const double ideal = unit_area(shape) * place.r * place.r;
  // The drawing of a small shape may cover a pixel more than its area says.
  return std::min(1.0, both / (ideal + static_cast<double>(silhouette.pixels.size()) - both));
}

// The middle of the pixels on a circle of `extent` pixels.
double circular_middle(const Silhouette& silhouette, size_t axis, double extent) {
  double c = 0, s = 0;
  for (const auto& pixel : silhouette.pixels) {
    const double angle = 2 * std::numbers::pi * pixel[axis] / extent;
    c += std::cos(angle);
    s += std::sin(angle);
  }
  return std::atan2(s, c) / (2 * std::numbers::pi) * extent;
}

// Climbs from `at` by ever shorter steps along each axis.
double climb(const Silhouette& silhouette, Shape shape, Place at) {
  const double largest = kLargest * std::min(silhouette.width, silhouette.height);
  at.r = std::min(at.r, largest);
  double best = shape_overlap(silhouette, shape, at);
  for (const double step : {6.0, 3.0, 1.5, 0.75, 0.4})
    for (bool higher = true; higher;) {
      higher = false;
      Place next = at;
      for (double Place::*axis : {&Place::x, &Place::y, &Place::r})
        for (const double way : {-step, step}) {
          Place tried = at;
          tried.*axis += way;
          if (tried.r < 2 || tried.r > largest) continue;
          const double reached = shape_overlap(silhouette, shape, tried);
          if (reached <= best) continue;
          best = reached;
          next = tried;
          higher = true;
        }
      at = next;
    }
  return best;
}

}  // namespace

double coverage(Shape shape, double dx, double dy, double r) {
  const double distance = std::sqrt(dx * dx + dy * dy);
  double inside = 0;  // signed distance to the edge in pixels, positive inside
  switch (shape) {
    case Shape::kBall:
      inside = r - distance;
      break;
    case Shape::kSquare:
      inside = 0.9 * r - std::max(std::abs(dx), std::abs(dy));
      break;
    case Shape::kRing:
      inside = 0.28 * r - std::abs(distance - 0.78 * r);
      break;
    case Shape::kTriangle: {  // point up, circumradius 1.2 r, lowered so that it sits in the middle
      const double y = dy - 0.15 * r;
      inside = 0.6 * r - std::max(y, std::abs(dx) * std::sqrt(3.0) / 2 - y / 2);
      break;
    }
    case Shape::kStar: {  // folded into the half sector from a tip (up) to the notch beside it
      constexpr double kSector = 2 * std::numbers::pi / 5;
      const double angle = std::abs(std::remainder(std::atan2(dx, -dy), kSector));
      const double notch_x = kNotch * std::sin(std::numbers::pi / 5),
                   notch_y = kNotch * std::cos(std::numbers::pi / 5);
      const double length = std::hypot(notch_x, kTip - notch_y);
      const double normal_x = (kTip - notch_y) / length, normal_y = notch_x / length;
      inside = r * normal_y * kTip -
               distance * (normal_x * std::sin(angle) + normal_y * std::cos(angle));
      break;
    }
  }
  return std::clamp(inside + 0.5, 0.0, 1.0);
}

std::array<double, kShapes> best_overlaps(const Silhouette& silhouette) {
  std::array<double, kShapes> out{};
  if (silhouette.pixels.empty()) return out;
  const double x = circular_middle(silhouette, 0, silhouette.width);
  const double y = circular_middle(silhouette, 1, silhouette.height);
  const double area = static_cast<double>(silhouette.pixels.size());
  for (int s = 0; s < kShapes; ++s)
    out[s] = climb(silhouette, Shape(s), {x, y, std::sqrt(area / unit_area(Shape(s)))});
  return out;
}

}  // namespace weft::pocket
