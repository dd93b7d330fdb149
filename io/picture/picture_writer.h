#pragma once
// Encodes a picture in the formats that clients ask for.
#include <optional>
#include <string>
#include <string_view>

#include "io/media/frame.h"
#include "io/picture/picture_header.h"

namespace weft {

inline constexpr const char* kPictureFormats = "png|jpeg|webp";
const char* to_string(PictureFormat format);  // "png", "jpeg" or "webp"
std::optional<PictureFormat> picture_format(std::string_view name);
std::string content_type(PictureFormat format);  // "image/png", ...

// The bytes of a file. `quality` is 0 ... 100 of JPEG and WebP, which lose the less the higher it
// is; PNG loses nothing. Error(kOutput) where the format cannot hold the picture: a side of more
// than 16383 pixels in WebP.
std::string encode_picture(const Frame& frame, PictureFormat format, int quality);

}  // namespace weft
