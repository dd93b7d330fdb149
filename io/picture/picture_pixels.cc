#include "io/picture/picture_pixels.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr int kMaxEdge = 4096;
// The scale, the means and the deviations are at most this, and the reciprocals of the deviations
// too: every pixel is finite.
constexpr double kLargest = 1e4;

// Writes value(channel, byte) of every pixel to out [3, height, width].
template <class Value>
void write_planes(const Frame& picture, const TensorView& out, Value&& value) {
  CHECK(out.dtype == DType::kF32 && out.rank == 3 && out.extent[0] == 3 &&
            out.extent[1] == picture.height && out.extent[2] == picture.width && out.contiguous(),
        out.rank, picture.height, picture.width);
  const int64_t pixels = int64_t{picture.width} * picture.height;
  float* planes = out.as<float>();
  for (int64_t c = 0; c < 3; ++c) {
    std::array<float, 256> table;
    for (size_t byte = 0; byte < table.size(); ++byte)
      table[byte] = value(static_cast<size_t>(c), static_cast<double>(byte));
    for (int64_t i = 0; i < pixels; ++i)
      planes[c * pixels + i] = table[picture.rgb[static_cast<size_t>(3 * i + c)]];
  }
}

// Reads a preprocessor_config.json whose result must be of `size` pixels per side.
class ConfigReader {
 public:
  ConfigReader(const std::string& path, int size)
      : path_(path), config_(read_json_file(path)), how_(default_clip_preprocessing(size)) {}

  ClipPreprocessing read() {
    if (!config_.is_object()) throw Error(ErrorKind::kModel, path_ + ": an object is due");
    how_.scale =
        flag("do_rescale") ? json_number_or(config_, "rescale_factor", path_, 1.0 / 255) : 1;
    if (!(how_.scale > 0 && how_.scale <= kLargest))
      refuse("rescale_factor", std::to_string(how_.scale), "a number above 0, up to 1e4");
    read_filter();
    const bool cropped = flag("do_center_crop");
    how_.shortest_edge = 0;
    if (flag("do_resize")) read_resize(cropped);
    if (cropped) require_size(read_rectangle("crop_size"), "crop_size");
    if (!cropped && !how_.squash)
      refuse("do_center_crop", "false", "true where the size is not {\"height\", \"width\"}");
    if (flag("do_normalize")) {
      read_channels("image_mean", &how_.mean);
      read_channels("image_std", &how_.deviation);
      for (const float value : how_.deviation)
        if (value < static_cast<float>(1 / kLargest))
          refuse("image_std", std::to_string(value), "1e-4 to 1e4");
    } else {
      how_.mean = {0, 0, 0};
      how_.deviation = {1, 1, 1};
    }
    return how_;
  }

 private:
  struct Rectangle {
    int64_t height = 0, width = 0;
  };

  [[noreturn]] void refuse(const std::string& field, const std::string& value,
                           const std::string& legal) const {
    throw Error(ErrorKind::kModel,
                path_ + ": \"" + field + "\" is " + value + " (legal: " + legal + ")");
  }
  bool flag(const std::string& field) const { return json_bool_or(config_, field, path_, true); }

  void read_filter() {
    constexpr int64_t kLanczos = 1, kBicubic = 3;  // Pillow's numbers
    const int64_t filter = json_int_or(config_, "resample", path_, kBicubic);
    if (filter != kLanczos && filter != kBicubic)
      refuse("resample", std::to_string(filter), "1, 3: Lanczos, bicubic");
    how_.filter = filter == kLanczos ? ResizeFilter::kLanczos : ResizeFilter::kBicubic;
  }

  void read_resize(bool cropped) {
    constexpr IntRange kLegal{1, kMaxEdge};
    const json size = json_has(config_, "size") ? config_.at("size") : json(how_.size);
    if (size.is_object() && !json_has(size, "shortest_edge")) {
      how_.squash = true;
      require_size(read_rectangle("size"), "size");
      return;
    }
    const json edge = size.is_object() ? size : json{{"shortest_edge", size}};
    how_.shortest_edge =
        static_cast<int>(json_int(edge, "shortest_edge", path_ + ": \"size\"", kLegal));
    if (!cropped) refuse("do_center_crop", "false", "true with a shortest_edge");
  }

  // A size is {"height": h, "width": w}, or one number for both.
  Rectangle read_rectangle(const std::string& field) const {
    constexpr IntRange kLegal{1, kMaxEdge};
    if (!json_has(config_, field)) return {how_.size, how_.size};
    const json& value = config_.at(field);
    if (!value.is_object()) {
      const int64_t side = json_int(config_, field, path_, kLegal);
      return {side, side};
    }
    const std::string what = path_ + ": \"" + field + "\"";
    return {json_int(value, "height", what, kLegal), json_int(value, "width", what, kLegal)};
  }

  void require_size(const Rectangle& size, const std::string& field) const {
    const std::string legal = std::to_string(how_.size);
    if (size.height != how_.size || size.width != how_.size)
      refuse(field, std::to_string(size.height) + " x " + std::to_string(size.width),
             legal + " x " + legal + ", which the image encoder takes");
  }

  void read_channels(const std::string& field, std::array<float, 3>* values) const {
    if (!json_has(config_, field)) return;
    const std::vector<double> read = json_numbers(config_, field, path_);
    if (read.size() != values->size())
      refuse(field, std::to_string(read.size()) + " numbers", "3 numbers");
    for (size_t c = 0; c < values->size(); ++c) {
      if (!(std::abs(read[c]) <= kLargest)) refuse(field, std::to_string(read[c]), "-1e4 to 1e4");
      (*values)[c] = static_cast<float>(read[c]);
    }
  }

  const std::string path_;
  const json config_;
  ClipPreprocessing how_;
};

}  // namespace

void picture_pixels(const Frame& picture, PixelRange range, const TensorView& out) {
  write_planes(picture, out, [&](size_t, double byte) {
    const float unit = static_cast<float>(byte) / 255;
    return range == PixelRange::kUnit ? unit : 2 * unit - 1;
  });
}

ClipPreprocessing default_clip_preprocessing(int size) {
  ClipPreprocessing how;
  how.size = how.shortest_edge = size;
  return how;
}

ClipPreprocessing read_clip_preprocessing(const std::string& path, int size) {
  if (!std::filesystem::exists(path)) return default_clip_preprocessing(size);
  return ConfigReader(path, size).read();
}

void clip_pixels(const Frame& picture, const ClipPreprocessing& how, const TensorView& out) {
  const Frame square =
      how.squash ? resized(picture, how.size, how.size, how.filter)
                 : centre_crop(picture, how.shortest_edge, how.size, how.size, how.filter);
  write_planes(square, out, [&](size_t c, double byte) {
    return (static_cast<float>(byte * how.scale) - how.mean[c]) / how.deviation[c];
  });
}

}  // namespace weft
