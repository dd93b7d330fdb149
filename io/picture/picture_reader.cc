#include "io/picture/picture_reader.h"

#include <algorithm>
#include <utility>

#include "io/input_file.h"
#include "io/picture/picture_decoders.h"
#include "io/picture/picture_header.h"
#include "kernels/check.h"

namespace weft {
namespace {

// Lays transparent pixels over black, within the memory of the picture.
void drop_alpha(StoredPicture* picture) {
  if (picture->channels == 3) return;
  std::vector<uint8_t>& pixels = picture->pixels;
  const size_t count = pixels.size() / 4;
  for (size_t i = 0; i < count; ++i) {
    const int alpha = pixels[4 * i + 3];
    for (size_t c = 0; c < 3; ++c)
      pixels[3 * i + c] = static_cast<uint8_t>((pixels[4 * i + c] * alpha + 127) / 255);
  }
  pixels.resize(3 * count);
}

// Turns and mirrors a picture as EXIF's orientation says: 2 mirrors left and right, 3 turns by 180
// degrees, 4 mirrors top and bottom, 5 swaps x and y, 6 turns clockwise, 7 swaps x and y from the
// other corner, 8 turns counter-clockwise.
Frame oriented(Frame stored, int orientation) {
  if (orientation == 1) return stored;
  const bool swapped = orientation >= 5;
  const int right = stored.width - 1, bottom = stored.height - 1;
  Frame frame(swapped ? stored.height : stored.width, swapped ? stored.width : stored.height);
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  for (int y = 0; y < frame.height; ++y)
    for (int x = 0; x < frame.width; ++x) {
      const int column = swapped ? y : x, row = swapped ? x : y;
      const uint8_t* from =
          stored.at(from_right ? right - column : column, from_bottom ? bottom - row : row);
      std::copy_n(from, 3, frame.at(x, y));
    }
  return frame;
}

StoredPicture decoded(PictureFormat format, const std::string& name, std::string bytes) {
  switch (format) {
    case PictureFormat::kJpeg:
      return decode_jpeg(name, bytes);
    case PictureFormat::kWebp:
      return decode_webp(name, bytes);
    default:
      return decode_png(name, std::move(bytes));
  }
}

}  // namespace

Frame decode_picture(const std::string& name, std::string bytes) {
  const PictureHeader header = read_picture_header(name, bytes);
  StoredPicture picture = decoded(header.format, name, std::move(bytes));
  if (picture.width != header.width || picture.height != header.height)
    throw Error(ErrorKind::kMedia,
                "cannot read '" + name + "': the picture is " + std::to_string(picture.width) +
                    "x" + std::to_string(picture.height) + " and its header says " +
                    std::to_string(header.width) + "x" + std::to_string(header.height));
  drop_alpha(&picture);
  Frame frame;
  frame.width = picture.width;
  frame.height = picture.height;
  frame.rgb = std::move(picture.pixels);
  return oriented(std::move(frame), header.orientation);
}

Frame read_picture(const std::string& path) {
  return decode_picture(path, read_input_file(path, kMaxPictureBytes, ErrorKind::kMedia));
}

}  // namespace weft
