#pragma once
// Reads back from a clip's pixels what it shows: colour, ground, shape and motion. Made for drawn
// clips and for what a small model makes of them (blur, noise, ragged edges).
#include <optional>
#include <vector>

#include "io/media/frame.h"
#include "tests/bench/pocket/words.h"

namespace weft::pocket {

constexpr int kViews = 6;      // frames of a clip that are looked at one by one
constexpr double kTorn = 0.6;  // a view that overlaps less with every ideal shape is torn

// One frame: the ideal shape that fits best what stands out in it, and their intersection over
// union.
struct View {
  int frame;
  Shape shape;
  double overlap;
};

struct ClipReading {
  Ground ground = Ground::kBlack;
  std::optional<Colour> colour;  // these three: nullopt where nothing stands out from the ground
  std::optional<Shape> shape;    // fits all views together best
  std::optional<Motion> motion;  // nullopt for fewer than 5 frames too
  std::vector<View> views;       // evenly spaced, the first and the last frame among them
  double ground_offset = 0;      // RGB distance to the named ground, for reports

  bool torn() const;  // any view is, or nothing stands out at all
  bool every_view_shows(Shape kind) const;
};

ClipReading read_clip(const std::vector<Frame>& frames);

// Says for each part whether the reading agrees with `asked`. A part that is not named counts as
// right.
struct ClipScore {
  bool colour, ground, shape, motion;
  bool every_view;  // each view for itself shows the shape asked for
  bool torn;
};
ClipScore score(const ClipReading& reading, const ClipWords& asked);

}  // namespace weft::pocket
