#pragma once
// The ideal shapes, and how well each fits the foreground of one frame.
#include <array>
#include <vector>

#include "tests/bench/pocket/words.h"

namespace weft::pocket {

// Returns the shortest way round a circle of `extent` pixels; `way` is at most a few times round
// it.
inline double around(double way, double extent) {
  while (way > extent / 2) way -= extent;
  while (way < -extent / 2) way += extent;
  return way;
}

// Returns the fraction of a pixel that a shape covers. The pixel's middle is (dx, dy) pixels from
// the shape's centre (y down), and r is the radius in pixels.
double coverage(Shape shape, double dx, double dy, double r);

// The pixels (their middles) of a frame that stand out from the ground. Opposite edges meet.
struct Silhouette {
  int width, height;
  std::vector<std::array<double, 2>> pixels;
};

// For each shape the greatest intersection over union with the silhouette that a place and a radius
// of it reach. Every pixel counts, so specks and torn-off pieces lower it.
std::array<double, kShapes> best_overlaps(const Silhouette& silhouette);

}  // namespace weft::pocket
