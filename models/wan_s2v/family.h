#pragma once
// The sizes of Wan 2.2 speech to video.
#include "models/registry.h"

namespace weft {

// The width and height of a clip that shows a picture of width x height: those of the picture, at
// most `area` pixels, rounded up to multiples of `multiple`. A larger picture is made smaller by
// the least that is enough (Wan-Video/Wan2.2, get_size_less_than_area).
std::array<int64_t, 2> wan_speech_size(int64_t width, int64_t height, int64_t area,
                                       int64_t multiple);

}  // namespace weft
