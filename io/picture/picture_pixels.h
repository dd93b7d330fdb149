#pragma once
// Pictures as the numbers that networks take.
#include <array>
#include <string>

#include "io/media/frame.h"
#include "io/picture/picture_fit.h"
#include "kernels/tensor.h"

namespace weft {

enum class PixelRange : uint8_t {
  kUnit,    // value / 255, in [0, 1]
  kSigned,  // 2 * (value / 255) - 1, in [-1, 1]: what VAEs encode
};

// Writes a picture to out [3, height, width] f32, on the host.
void picture_pixels(const Frame& picture, PixelRange range, const TensorView& out);

// The settings of transformers' CLIPImageProcessor, which works with Pillow. The defaults are those
// of OpenAI's CLIP.
struct ClipPreprocessing {
  int size = 224;         // of the result, in pixels per side
  int shortest_edge = 0;  // resizes the shorter side, then cuts out the middle; 0 keeps the size
  bool squash = false;    // resizes to size x size instead, whatever the picture's shape
  ResizeFilter filter = ResizeFilter::kBicubic;
  double scale = 1.0 / 255;
  std::array<float, 3> mean{0.48145466f, 0.4578275f, 0.40821073f};
  std::array<float, 3> deviation{0.26862954f, 0.26130258f, 0.27577711f};
};

// The published preprocessing of a tower that takes pictures of `size` pixels per side.
ClipPreprocessing default_clip_preprocessing(int size);

// Reads a preprocessor_config.json, or returns the default where there is no file. A setting that
// is not supported, or that does not end in size x size pixels, is an Error(kModel) that names it
// and what is legal.
ClipPreprocessing read_clip_preprocessing(const std::string& path, int size);

// Writes a picture to out [3, size, size] f32, on the host: resized, cut, scaled, and normalised
// per channel to (value - mean) / deviation.
void clip_pixels(const Frame& picture, const ClipPreprocessing& how, const TensorView& out);

}  // namespace weft
