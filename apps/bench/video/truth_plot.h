#pragma once
// Draws the quality of methods against the bytes that they send.
#include <span>
#include <string>

namespace weft {

struct TruthPoint {
  std::string name;
  double bytes_per_step;  // sent by all ranks
  double psnr_db;         // infinite where the frames are those of full attention
  bool exact() const { return psnr_db > 1000; }
};

// One SVG picture. Exact methods stand on a line of their own above the others.
std::string truth_svg(std::span<const TruthPoint> points, const std::string& title);

}  // namespace weft
