#pragma once
// The pictures that condition Wan models (Wan-Video/Wan2.1 and Wan2.2, image2video.py and
// textimage2video.py).
#include "models/registry.h"

namespace weft {

// The form that a model directory asks for: `expand_timesteps` in its model_index.json, or given
// channels of its transformer. Throws Error(kModel) for a transformer that fits no form.
PictureConditioning wan_pictures(const ModelDirectory& model);

// Writes the mask and after it the encoded video (PictureConditioning::give_channels). Channel k
// of the mask is 1 in latent frame f where frame 4 f - 3 + k of the clip is a picture; latent frame
// 0 holds frame 0 alone, which counts for all channels.
void wan_given_channels(int pictures, const TensorView& encoded, const TensorView& out);

// The largest clip of the picture's shape, rounded down to multiples.
std::array<int64_t, 2> wan_floor_size(int64_t width, int64_t height, int64_t area,
                                      int64_t multiple);
// There are two clips that fill the area: one has its width rounded down first, the other its
// height. This is the one whose shape is closer to the picture's.
std::array<int64_t, 2> wan_closest_size(int64_t width, int64_t height, int64_t area,
                                        int64_t multiple);

}  // namespace weft
