#pragma once
// The latents of a picture that a stream shows.
#include <array>

#include "engine/job/given_picture.h"
#include "engine/parts/components.h"
#include "kernels/arena.h"

namespace weft {

// All f32 and normalised, on the host; empty where there is no picture.
struct StillLatents {
  Tensor picture{};  // [C, 1, h, w]
  Tensor video{};    // of the picture standing still [C, TransformerTraits::motion_frames, h, w]
};

// `latent` is the shape [C, f, h, w] of a segment. Error(kMedia) for a file that is no picture.
StillLatents still_latents(Stream& stream, Arena& arena, Components& parts,
                           const GivenPicture& picture, PictureFit fit,
                           const std::array<int64_t, 4>& latent);

}  // namespace weft
