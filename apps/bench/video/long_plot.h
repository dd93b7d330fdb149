#pragma once
// Draws how the videos of several methods keep their picture over time.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace weft {

// One video over time. The reader looks at stretches of frames.
struct VideoCurve {
  struct Stretch {
    double overlap;  // of the worst fitting view with an ideal shape
    bool right;      // shows what the prompt asks for
  };
  std::string name;
  std::vector<double> changes;     // of each frame but the first from the one before it
  std::vector<int64_t> borders;    // the first frames of its blocks but block 0
  std::vector<double> brightness;  // mean level of each frame
  std::vector<Stretch> stretches;
};

// One SVG picture with three panels: the changes, where dots are the borders of blocks, the
// brightness less that of the first block, and the stretches.
std::string long_svg(std::span<const VideoCurve> curves, int64_t stretch_frames,
                     const std::string& title);

}  // namespace weft
