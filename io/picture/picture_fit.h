#pragma once
// Brings a picture to the size of a clip. It resizes as Pillow does, to the bit: the reference
// implementations resize with Pillow.
#include <cstdint>

#include "io/media/frame.h"

namespace weft {

// kLanczos is a sinc with a window of three lobes, kBicubic the cubic with a = -0.5. Both widen
// when a picture becomes smaller, so that no pixel is left out.
enum class ResizeFilter : uint8_t { kLanczos, kBicubic };

// Resizes horizontally, rounds to 8 bits, resizes vertically and rounds again. Weights are rounded
// to 2^-22. Equal to Image.resize((width, height), filter) of Pillow 12 and before; Pillow 13
// resizes vertically first where that is cheaper.
Frame resized(const Frame& picture, int width, int height, ResizeFilter filter);

enum class PictureFit : uint8_t {
  kCover,    // scaled until it covers the size, then its middle is cut out (Wan 2.2 TI2V)
  kContain,  // scaled until it fits into the size, with black bars
  kStretch,  // resized to the size (diffusers)
};

// Returns the picture in width x height, resized with kLanczos. Sizes of the scaled picture are
// rounded to the nearest, halves to even; the cut and the bars begin at half the difference,
// rounded down.
Frame fit_picture(const Frame& picture, int width, int height, PictureFit fit);

// Resizes so that the shorter side becomes `edge` (the longer one is rounded down) and returns the
// middle of width x height of it, with black where the picture is smaller: the preprocessing of
// transformers' CLIPImageProcessor. `edge` 0 keeps the size.
Frame centre_crop(const Frame& picture, int edge, int width, int height, ResizeFilter filter);

}  // namespace weft
