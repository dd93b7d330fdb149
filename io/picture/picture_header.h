#pragma once
// Checks an untrusted still picture before anything is decoded: its kind, its size, that its parts
// lie inside the file and that the end is not missing.
#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

enum class PictureFormat { kJpeg, kPng, kWebp };

inline constexpr size_t kMaxPictureBytes = size_t{64} << 20;    // of the file
inline constexpr int64_t kMaxPicturePixels = int64_t{1} << 26;  // 64 Mpixel
inline constexpr int kMaxPictureSide = 16384;

struct PictureHeader {
  PictureFormat format;
  int width = 0, height = 0;  // as stored, which is before the orientation is applied
  int orientation = 1;        // of EXIF, 1 ... 8
};

// Recognises the format by its first bytes. It reads the PNG chunks, the JPEG segments or the WebP
// chunks up to the end of the picture; bytes after that are ignored. Refused are animated WebP,
// JPEG that is not Huffman-coded with 8 bits and one, three or four components, and a PNG or
// JPEG that is too short for its pixels. EXIF that is damaged counts as absent. Messages
// begin with `name`. Errors: kMedia.
PictureHeader read_picture_header(const std::string& name, std::string_view bytes);

}  // namespace weft
