#pragma once
// Reads a still picture from an untrusted file, as a model is conditioned on it.
#include <string>

#include "io/media/frame.h"

namespace weft {

// Reads a JPEG, PNG or WebP file, recognised by its bytes. The limits are those of
// picture_header.h, which are checked before any pixel is decoded; a file that is damaged or cut
// anywhere is refused, never shown in part. The values are those of Pillow: 16 bits keep their high
// byte, gray is repeated, CMYK is read as Adobe stores it (inverted) and r = c k / 255. The
// orientation of EXIF is applied. Unlike Pillow's convert("RGB"), transparent pixels are laid over
// black: value * alpha / 255, rounded to the nearest. Color profiles are ignored. Errors: kMedia.
Frame read_picture(const std::string& path);
// The same of bytes in memory; messages begin with `name`.
Frame decode_picture(const std::string& name, std::string bytes);

}  // namespace weft
