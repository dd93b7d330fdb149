// encode_picture: what was written is read again, and quality trades bytes for truth.
#include "io/picture/picture_writer.h"

#include <cmath>

#include "io/picture/picture_reader.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

Frame waves() {
  Frame frame(96, 64);
  for (int y = 0; y < frame.height; ++y)
    for (int x = 0; x < frame.width; ++x)
      for (int c = 0; c < 3; ++c)
        frame.at(x, y)[c] =
            static_cast<uint8_t>(127 + 120 * std::sin(0.05 * (c + 1) * x + 0.1 * y));
  return frame;
}

double mean_error(const Frame& a, const Frame& b) {
  double sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) sum += std::abs(a.rgb[i] - b.rgb[i]);
  return sum / static_cast<double>(a.rgb.size());
}

TEST(PictureWriter, EveryFormatIsReadAgain) {
  const Frame frame = waves();
  for (const PictureFormat format :
       {PictureFormat::kPng, PictureFormat::kJpeg, PictureFormat::kWebp}) {
    const std::string fine = encode_picture(frame, format, 100);
    const Frame read = decode_picture("picture", fine);
    ASSERT_EQ(read.width, frame.width) << to_string(format);
    ASSERT_EQ(read.height, frame.height) << to_string(format);
    if (format == PictureFormat::kPng) {
      EXPECT_EQ(read.rgb, frame.rgb);
      continue;
    }
    EXPECT_LT(mean_error(read, frame), 4) << to_string(format);
    const std::string coarse = encode_picture(frame, format, 5);
    EXPECT_LT(coarse.size(), fine.size() / 2) << to_string(format);
    EXPECT_GT(mean_error(decode_picture("picture", coarse), frame), mean_error(read, frame));
  }
}

TEST(PictureWriter, FormatsHaveNames) {
  EXPECT_EQ(picture_format("jpeg"), PictureFormat::kJpeg);
  EXPECT_EQ(content_type(PictureFormat::kWebp), "image/webp");
  EXPECT_FALSE(picture_format("jpg"));
}

TEST(PictureWriter, RefusesWhatAFormatCannotHold) {
  EXPECT_THROW(encode_picture(Frame(16384, 1), PictureFormat::kWebp, 80), Error);
}

}  // namespace
}  // namespace weft
