#include "io/picture/picture_writer.h"

namespace weft {

const char* to_string(PictureFormat format) {
  constexpr const char* kNames[] = {"jpeg", "png", "webp"};
  return kNames[static_cast<size_t>(format)];
}

std::optional<PictureFormat> picture_format(std::string_view name) {
  for (const PictureFormat format :
       {PictureFormat::kPng, PictureFormat::kJpeg, PictureFormat::kWebp})
    if (name == to_string(format)) return format;
  return std::nullopt;
}

std::string content_type(PictureFormat format) { return std::string("image/") + to_string(format); }

}  // namespace weft
