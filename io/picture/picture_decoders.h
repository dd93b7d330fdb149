#pragma once
// Decoders of formats whose header read_picture_header has accepted. Errors: kMedia, kMemory.
#include <string>
#include <string_view>

#include "io/media/image.h"

namespace weft {

// Decodes a JPEG file to RGB with libjpeg. Data that are damaged are refused, also where libjpeg
// would guess.
StoredPicture decode_jpeg(const std::string& name, std::string_view bytes);
// Decodes a still WebP file to RGB, or to RGB and alpha if it has any.
StoredPicture decode_webp(const std::string& name, std::string_view bytes);

}  // namespace weft
