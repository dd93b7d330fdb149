#pragma once
// Reads back from a clip's pixels what it shows: colour, ground, shape and motion. Made for drawn
// clips and for what a small model makes of them (blur, noise, ragged edges).
#include <optional>
#include <vector>

#include "io/frame.h"
#include "tests/support/clip.h"

namespace weft {

struct ClipReading {
  Ground ground = Ground::kBlack;
  std::optional<Colour> colour;  // these three: nullopt where nothing stands out from the ground
  std::optional<Shape> shape;
  std::optional<Motion> motion;  // nullopt for fewer than 5 frames too
  double shape_fit = 0;          // soft intersection over union with the best template, 0..1
  double ground_offset = 0;      // RGB distance to the named ground, for reports
};

ClipReading read_clip(const std::vector<Frame>& frames);

// Says for each part whether the reading agrees with `asked`. A part that is not named counts as
// right.
struct ClipScore {
  bool colour, ground, shape, motion;
};
ClipScore score(const ClipReading& reading, const ClipWords& asked);

}  // namespace weft
