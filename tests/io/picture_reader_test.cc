// Reading still pictures, against Pillow (pictures/make_pictures.py), and hostile ones.
#include "io/picture/picture_reader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>

#include "io/media/image.h"
#include "io/picture/picture_header.h"
#include "io/weights/tensor_file.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

const fs::path kPictures = "tests/io/pictures";

std::set<std::string> picture_names() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kPictures))
    if (const std::string extension = entry.path().extension();
        extension == ".png" || extension == ".jpg" || extension == ".webp")
      names.insert(entry.path().filename());
  return names;
}

std::string bytes_of(const std::string& name) { return read_bytes(kPictures / name); }

TEST(PictureReader, ReadsEveryKindAsPillowDoes) {
  const TensorFile expected = TensorFile::open(kPictures / "expected.safetensors");
  const std::set<std::string> names = picture_names();
  EXPECT_EQ(names.size(), 33u);
  for (const std::string& name : names) {
    const Frame frame = read_picture(kPictures / name);
    const TensorView want = expected.view(name);
    ASSERT_EQ(frame.height, want.extent[0]) << name;
    ASSERT_EQ(frame.width, want.extent[1]) << name;
    EXPECT_EQ(std::memcmp(frame.rgb.data(), want.data, frame.rgb.size()), 0) << name;
  }
}

TEST(PictureReader, TheBytesDecideAndNotTheExtension) {
  const TempDir dir;
  const std::string path = dir.write("a.webp", bytes_of("rgb.jpg"));
  EXPECT_EQ(read_picture(path).rgb, read_picture(kPictures / "rgb.jpg").rgb);
  EXPECT_EQ(decode_picture("body", bytes_of("rgb.png")).rgb, read_png(kPictures / "rgb.png").rgb);
  for (const std::string& bytes : {std::string("GIF89a"), std::string("<svg/>"), std::string()})
    expect_error(ErrorKind::kMedia, "(legal: a JPEG, PNG or WebP file",
                 [&] { decode_picture("a.png", bytes); });
  expect_error(ErrorKind::kMedia, "is a folder", [&] { read_picture(dir.path()); });
  expect_error(ErrorKind::kMedia, "none.png", [&] { read_picture(dir / "none.png"); });
}

TEST(PictureReader, ACutFileIsRefusedWhereverItIsCut) {
  const auto begin = std::chrono::steady_clock::now();
  for (const std::string& name : picture_names()) {
    const std::string bytes = bytes_of(name);
    for (size_t size = 0; size < bytes.size(); ++size)
      expect_error(ErrorKind::kMedia, name, [&] { decode_picture(name, bytes.substr(0, size)); });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// A JPEG may be cut and then ended with the right marker; libjpeg would show it half gray.
TEST(PictureReader, DamagedDataAreRefusedAndNotGuessed) {
  for (const std::string name : {"rgb.jpg", "full_colours.jpg", "restarts.jpg", "cmyk.jpg"}) {
    const std::string bytes = bytes_of(name);
    for (const size_t lost : {30u, 100u, 200u}) {
      const std::string cut = bytes.substr(0, bytes.size() - lost) + "\xff\xd9";
      expect_error(ErrorKind::kMedia, name, [&] { decode_picture(name, cut); });
    }
  }
  std::string png = bytes_of("rgb.png");
  png[png.size() - 40] ^= 1;
  expect_error(ErrorKind::kMedia, "cannot read 'a'", [&] { decode_picture("a", png); });
}

// Every byte of the headers takes eight other values. A picture or an Error, in bounded time.
TEST(PictureReader, AnyChangedByteIsReadOrRefused) {
  size_t refused = 0, read = 0;
  for (const std::string& name : picture_names()) {
    const std::string bytes = bytes_of(name);
    for (size_t at = 0; at < std::min<size_t>(bytes.size(), 700); ++at)
      for (int bit = 0; bit < 8; ++bit) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
        try {
          const Frame frame = decode_picture(name, changed);
          EXPECT_EQ(frame.rgb.size(), size_t{3} * frame.width * frame.height);
          ++read;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kMedia) << error.what();
          EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
          ++refused;
        }
      }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(read, 1000u);
}

void put(std::string* bytes, size_t at, std::initializer_list<int> values) {
  for (const int value : values) (*bytes)[at++] = static_cast<char>(value);
}

// Returns the most memory that this process has taken so far, in KiB.
long peak_kib() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(PictureReader, ClaimedSizesAreRefusedBeforeMemoryIsTaken) {
  const long before = peak_kib();
  const auto refused = [](const std::string& bytes, const std::string& part) {
    expect_error(ErrorKind::kMedia, part, [&] { decode_picture("a", bytes); });
  };
  std::string png = bytes_of("rgb.png");
  put(&png, 16, {0x7f, 0xff, 0xff, 0xff});
  refused(png, "the width is 2147483647 (legal: 1 ... 16384)");
  put(&png, 16, {0, 0, 0x40, 0, 0, 0, 0x40, 0});
  refused(png, "the number of pixels is 268435456 (legal: at most 67108864)");
  put(&png, 16, {0, 0, 0x20, 0, 0, 0, 0x20, 0});
  refused(png, "cannot hold 201326592 bytes of pixels");
  put(&png, 16, {0, 0, 0, 0});
  refused(png, "the width is 0 (legal: 1 ... 16384)");

  std::string jpeg = bytes_of("rgb.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, jpeg.npos);
  put(&jpeg, frame + 5, {0xff, 0xff});
  refused(jpeg, "the height is 65535 (legal: 1 ... 16384)");
  put(&jpeg, frame + 5, {0x1f, 0xff, 0x1f, 0xff});
  refused(jpeg, "cannot hold 8191 x 8191 pixels");

  std::string webp = bytes_of("lossless.webp");
  put(&webp, 21, {0xff, 0xff, 0xff, 0x0f});
  refused(webp, "the number of pixels is 268435456");
  EXPECT_LT(peak_kib() - before, 64 << 10);
}

TEST(PictureReader, UnsupportedKindsAreNamed) {
  const auto refused = [](const std::string& bytes, const std::string& part) {
    expect_error(ErrorKind::kMedia, part, [&] { decode_picture("a", bytes); });
  };
  std::string jpeg = bytes_of("rgb.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  put(&jpeg, frame + 1, {0xc3});
  refused(jpeg, "the coding is SOF3 (legal: SOF0, SOF1, SOF2");
  put(&jpeg, frame + 1, {0xc0});
  put(&jpeg, frame + 4, {12});
  refused(jpeg, "the number of bits is 12 (legal: 8)");
  put(&jpeg, frame + 4, {8});
  put(&jpeg, frame + 9, {2});
  refused(jpeg, "the number of components is 2 (legal: 1, 3, 4)");

  std::string webp = bytes_of("lossy_alpha.webp");
  ASSERT_EQ(webp.substr(12, 4), "VP8X");
  put(&webp, 20, {webp[20] | 2});
  refused(webp, "the WebP file is animated (legal: a still picture)");
  webp = bytes_of("lossy_alpha.webp");
  put(&webp, 24, {99});
  refused(webp, "the canvas is 100x14 and the picture 23x14");

  std::string png = bytes_of("rgb.png");
  put(&png, 24, {4});
  refused(png, "the bit depth of color type 2 is 4 (legal: 8, 16)");
}

// The limits on scans bound the time that a progressive JPEG may take.
TEST(PictureReader, ScansAreLimited) {
  std::string jpeg = bytes_of("progressive.jpg");
  const std::string scan = jpeg.substr(jpeg.rfind("\xff\xda"), 10);
  jpeg.resize(jpeg.size() - 2);
  for (int i = 0; i < 100; ++i) jpeg += scan;
  expect_error(ErrorKind::kMedia, "(legal: at most 100)",
               [&] { decode_picture("a", jpeg + "\xff\xd9"); });
}

}  // namespace
}  // namespace weft::test
