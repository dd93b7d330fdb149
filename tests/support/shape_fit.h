#pragma once
// Measures how well each ideal shape fits the foreground of one frame.
#include <array>
#include <vector>

#include "tests/support/clip.h"

namespace weft {

// The pixels (their middles) of a frame that stand out from the ground. Opposite edges meet.
struct Silhouette {
  int width, height;
  std::vector<std::array<double, 2>> pixels;
};

// For each shape the greatest intersection over union with the silhouette that a place and a radius
// of it reach. Every pixel counts, so specks and torn-off pieces lower it.
std::array<double, kShapes> best_overlaps(const Silhouette& silhouette);

}  // namespace weft
