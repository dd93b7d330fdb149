#pragma once
// Exact drawings of the faces that the pocket avatar is trained to draw. The geometry is that of
// models/pocket_avatar/recipe/face.py.
#include <vector>

#include "tests/bench/pocket/face_reader.h"

namespace weft::pocket {

// One picture's pose.
struct FacePose {
  double opening = 0;  // of the mouth, 0 to 1
  double width = 0;    // of the mouth: -1 round to 1 wide
  double gaze = 0;     // -1 left to 1 right
  double lids = 0;     // 0 open to 1 shut
  double low = 0;      // pixels that the head is lower
};

Frame draw_face(const FaceLook& look, const FacePose& pose);

// A stretch of speech with looks to the sides and blinks, which depend on the seed.
std::vector<FacePose> face_poses(int pictures, uint32_t seed);

}  // namespace weft::pocket
