#include "engine/preview/preview.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "io/media/image.h"
#include "io/picture/picture_fit.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr int64_t kLargestSide = 320;

}  // namespace

PreviewFit preview_fit_of(const ModelDirectory& directory) {
  const std::string path = preview_fit_path(directory.vae);
  if (!std::filesystem::exists(path))
    throw Error(ErrorKind::kUsage,
                "--preview is proj, but '" + path +
                    "' does not exist; legal: none, or a model that has it. It is made by "
                    "models/pocket/recipe/fit_preview.py of weft's sources");
  return read_preview_fit(path, directory.vae_model->traits.channels);
}

std::vector<Frame> preview_pictures(const TensorView& colours, int64_t scale) {
  CHECK(colours.rank == 4 && colours[0] == 3, colours.rank);
  const int64_t frames = colours[1], height = colours[2], width = colours[3];
  const int64_t factor = std::clamp(kLargestSide / std::max(height, width), int64_t{1}, scale);
  std::vector<Frame> pictures;
  for (int64_t f = 0; f < frames; ++f) {
    Frame frame(static_cast<int>(width), static_cast<int>(height));
    for (int64_t c = 0; c < 3; ++c)
      for (int64_t i = 0; i < height * width; ++i) {
        const float value = colours.as<float>()[(c * frames + f) * height * width + i];
        frame.rgb[static_cast<size_t>(3 * i + c)] =
            static_cast<uint8_t>(std::lround(std::clamp((value + 1) * 127.5f, 0.0f, 255.0f)));
      }
    pictures.push_back(resized(frame, static_cast<int>(width * factor),
                               static_cast<int>(height * factor), ResizeFilter::kBicubic));
  }
  return pictures;
}

Preview preview_of(const TensorView& colours, const VaeTraits& vae, int done, int total,
                   double fps) {
  return {.step = done,
          .total = total,
          .fps = fps / static_cast<double>(vae.temporal_factor),
          .frames = preview_pictures(colours, vae.spatial_factor)};
}

std::string preview_png(const Preview& preview) {
  CHECK(!preview.frames.empty(), preview.step);
  return encode_png(preview.frames[preview.frames.size() / 2], {});
}

}  // namespace weft
