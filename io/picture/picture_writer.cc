// libjpeg reports errors by longjmp. write_jpeg, which calls it, therefore has no C++ object with a
// destructor between setjmp and the call; the results are in the caller's object.
#include "io/picture/picture_writer.h"

#include <cstdio>
// jpeglib.h needs the types of <cstdio>.
#include <jpeglib.h>
#include <webp/encode.h>

#include <csetjmp>
#include <cstdlib>

#include "io/media/image.h"
#include "kernels/check.h"

namespace weft {
namespace {

struct JpegWriting {
  JpegWriting(const Frame& from, int level) : frame(from), quality(level) {}
  ~JpegWriting() {
    jpeg_destroy_compress(&jpeg);
    std::free(bytes);
  }
  JpegWriting(const JpegWriting&) = delete;
  JpegWriting& operator=(const JpegWriting&) = delete;

  const Frame& frame;
  const int quality;
  unsigned char* bytes = nullptr;  // by libjpeg's malloc
  unsigned long size = 0;
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  std::jmp_buf failed{};
  char message[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void fail_writing(j_common_ptr jpeg) {
  auto* writing = static_cast<JpegWriting*>(jpeg->client_data);
  writing->errors.format_message(jpeg, writing->message);
  std::longjmp(writing->failed, 1);
}

bool write_jpeg(JpegWriting* writing) {
  constexpr int kSharpColours = 90;  // from this quality on colours keep their full resolution
  jpeg_compress_struct& jpeg = writing->jpeg;
  jpeg.err = jpeg_std_error(&writing->errors);
  jpeg.client_data = writing;
  writing->errors.error_exit = fail_writing;
  if (setjmp(writing->failed)) return false;
  jpeg_create_compress(&jpeg);
  jpeg_mem_dest(&jpeg, &writing->bytes, &writing->size);
  jpeg.image_width = static_cast<JDIMENSION>(writing->frame.width);
  jpeg.image_height = static_cast<JDIMENSION>(writing->frame.height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, writing->quality, TRUE);
  jpeg.optimize_coding = TRUE;
  if (writing->quality >= kSharpColours)
    jpeg.comp_info[0].h_samp_factor = jpeg.comp_info[0].v_samp_factor = 1;
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = const_cast<uint8_t*>(writing->frame.at(0, static_cast<int>(jpeg.next_scanline)));
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  return true;
}

std::string encode_jpeg(const Frame& frame, int quality) {
  JpegWriting writing(frame, quality);
  if (!write_jpeg(&writing))
    throw Error(ErrorKind::kOutput,
                std::string("cannot encode a JPEG picture: ") + writing.message);
  return {reinterpret_cast<const char*>(writing.bytes), writing.size};
}

std::string encode_webp(const Frame& frame, int quality) {
  uint8_t* bytes = nullptr;
  const size_t size = WebPEncodeRGB(frame.rgb.data(), frame.width, frame.height, 3 * frame.width,
                                    static_cast<float>(quality), &bytes);
  std::string out(reinterpret_cast<const char*>(bytes), size);
  WebPFree(bytes);
  if (size == 0)
    throw Error(ErrorKind::kOutput, "cannot encode a WebP picture of " +
                                        std::to_string(frame.width) + "x" +
                                        std::to_string(frame.height) + ", legal: sides up to " +
                                        std::to_string(WEBP_MAX_DIMENSION));
  return out;
}

}  // namespace

std::string encode_picture(const Frame& frame, PictureFormat format, int quality) {
  CHECK(frame.width > 0 && frame.height > 0 && quality >= 0 && quality <= 100, frame.width,
        frame.height, quality);
  switch (format) {
    case PictureFormat::kJpeg:
      return encode_jpeg(frame, quality);
    case PictureFormat::kWebp:
      return encode_webp(frame, quality);
    default:
      return encode_png(frame, {});
  }
}

}  // namespace weft
