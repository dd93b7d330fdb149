// libjpeg reports errors by longjmp. read_jpeg, which calls it, therefore has no C++ object with a
// destructor between setjmp and the call; the results are in the caller's object.
#include "io/picture/picture_decoders.h"

#include <cstdio>
// jpeglib.h needs the types of <cstdio>.
#include <jerror.h>
#include <jpeglib.h>
#include <webp/decode.h>

#include <algorithm>
#include <csetjmp>
#include <vector>

#include "kernels/check.h"

namespace weft {
namespace {

struct JpegReading {
  explicit JpegReading(std::string_view file) : bytes(file) {}
  ~JpegReading() { jpeg_destroy_decompress(&jpeg); }
  JpegReading(const JpegReading&) = delete;
  JpegReading& operator=(const JpegReading&) = delete;

  std::string_view bytes;
  StoredPicture picture;
  std::vector<uint8_t> row;  // of CMYK
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  std::jmp_buf failed{};
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void fail(j_common_ptr jpeg) {
  auto* reading = static_cast<JpegReading*>(jpeg->client_data);
  reading->errors.format_message(jpeg, reading->message);
  std::longjmp(reading->failed, 1);
}

// Warnings mean that libjpeg goes on with values that it has made up. Only those are harmless that
// concern bytes between segments or a header that contradicts itself.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) return;
  switch (jpeg->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_BOGUS_PROGRESSION:
      return;
    default:
      fail(jpeg);
  }
}

// Returns round(a * b / 255).
uint8_t scaled(int a, int b) { return static_cast<uint8_t>((a * b + 127) / 255); }

// Adobe stores 255 - c, 255 - m, 255 - y and 255 - k. Pillow rounds c * (255 - k) / 255.
void cmyk_to_rgb(const std::vector<uint8_t>& row, uint8_t* rgb) {
  for (size_t i = 0; i < row.size() / 4; ++i) {
    const uint8_t* cmyk = row.data() + 4 * i;
    for (size_t c = 0; c < 3; ++c)
      rgb[3 * i + c] = static_cast<uint8_t>(cmyk[3] - scaled(255 - cmyk[c], cmyk[3]));
  }
}

bool read_jpeg(JpegReading* reading) {
  StoredPicture* picture = &reading->picture;
  jpeg_decompress_struct& jpeg = reading->jpeg;
  jpeg.err = jpeg_std_error(&reading->errors);
  jpeg.client_data = reading;
  reading->errors.error_exit = fail;
  reading->errors.emit_message = on_message;
  if (setjmp(reading->failed)) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const uint8_t*>(reading->bytes.data()),
               static_cast<unsigned long>(reading->bytes.size()));
  jpeg_read_header(&jpeg, TRUE);
  const bool cmyk = jpeg.num_components == 4;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  picture->width = static_cast<int>(jpeg.image_width);
  picture->height = static_cast<int>(jpeg.image_height);
  picture->channels = 3;
  picture->pixels.resize(size_t{3} * jpeg.image_width * jpeg.image_height);
  if (cmyk) reading->row.resize(size_t{4} * jpeg.image_width);
  jpeg_start_decompress(&jpeg);
  while (jpeg.output_scanline < jpeg.output_height) {
    uint8_t* out = picture->pixels.data() + size_t{3} * jpeg.image_width * jpeg.output_scanline;
    JSAMPROW row = cmyk ? reading->row.data() : out;
    jpeg_read_scanlines(&jpeg, &row, 1);
    if (cmyk) cmyk_to_rgb(reading->row, out);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

}  // namespace

StoredPicture decode_jpeg(const std::string& name, std::string_view bytes) {
  JpegReading reading(bytes);
  if (!read_jpeg(&reading))
    throw Error(ErrorKind::kMedia, "cannot read '" + name + "': " + reading.message);
  return std::move(reading.picture);
}

StoredPicture decode_webp(const std::string& name, std::string_view bytes) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto refuse = [&] {
    throw Error(ErrorKind::kMedia, "cannot read '" + name + "': the WebP data are damaged");
  };
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(data, bytes.size(), &features) != VP8_STATUS_OK || features.has_animation)
    refuse();
  StoredPicture picture{features.width, features.height, features.has_alpha ? 4 : 3, {}};
  const size_t row_bytes = static_cast<size_t>(picture.channels) * picture.width;
  picture.pixels.resize(row_bytes * picture.height);
  const auto decode = features.has_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (!decode(data, bytes.size(), picture.pixels.data(), picture.pixels.size(),
              static_cast<int>(row_bytes)))
    refuse();
  return picture;
}

}  // namespace weft
