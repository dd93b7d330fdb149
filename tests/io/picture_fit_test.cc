// Resizing, fitting and normalising, against Pillow and transformers (pictures/make_pictures.py).
#include "io/picture/picture_fit.h"

#include <gtest/gtest.h>

#include <cstring>

#include "io/picture/picture_pixels.h"
#include "io/weights/tensor_file.h"
#include "tests/io/io_testing.h"

namespace weft::test {
namespace {

const TensorFile& expected() {
  static const TensorFile file = TensorFile::open("tests/io/pictures/expected.safetensors");
  return file;
}

Frame expected_frame(const std::string& name) {
  const TensorView view = expected().view(name);
  Frame frame(static_cast<int>(view.extent[1]), static_cast<int>(view.extent[0]));
  std::memcpy(frame.rgb.data(), view.data, frame.rgb.size());
  return frame;
}

// The picture and the size of a tensor "kind.picture.WIDTHxHEIGHT".
struct FitCase {
  std::string kind, picture;
  Frame result;
};

std::vector<FitCase> cases_of(std::initializer_list<std::string> kinds) {
  std::vector<FitCase> cases;
  for (const std::string& name : expected().names())
    for (const std::string& kind : kinds)
      if (name.starts_with(kind + ".")) {
        const size_t begin = kind.size() + 1;
        cases.push_back({kind, "in." + name.substr(begin, name.find('.', begin) - begin),
                         expected_frame(name)});
      }
  return cases;
}

TEST(PictureFit, ResizesAsPillowToTheBit) {
  const std::vector<FitCase> cases = cases_of({"lanczos", "bicubic"});
  ASSERT_EQ(cases.size(), 24u);
  for (const FitCase& c : cases) {
    const ResizeFilter filter =
        c.kind == "lanczos" ? ResizeFilter::kLanczos : ResizeFilter::kBicubic;
    const Frame frame = resized(expected_frame(c.picture), c.result.width, c.result.height, filter);
    EXPECT_EQ(frame.rgb, c.result.rgb) << c.kind << c.picture << c.result.width;
  }
}

TEST(PictureFit, CoverAndContainAsTheirReferences) {
  const std::vector<FitCase> cases = cases_of({"cover", "contain"});
  ASSERT_EQ(cases.size(), 24u);
  for (const FitCase& c : cases) {
    const PictureFit fit = c.kind == "cover" ? PictureFit::kCover : PictureFit::kContain;
    const Frame frame =
        fit_picture(expected_frame(c.picture), c.result.width, c.result.height, fit);
    EXPECT_EQ(frame.rgb, c.result.rgb) << c.kind << c.picture << c.result.width;
  }
}

TEST(PictureFit, StretchIsAResizeAndTheSameSizeIsACopy) {
  const Frame picture = expected_frame("in.wide");
  EXPECT_EQ(fit_picture(picture, 32, 32, PictureFit::kStretch).rgb,
            resized(picture, 32, 32, ResizeFilter::kLanczos).rgb);
  for (const PictureFit fit : {PictureFit::kCover, PictureFit::kContain, PictureFit::kStretch})
    EXPECT_EQ(fit_picture(picture, picture.width, picture.height, fit).rgb, picture.rgb);
}

// A line of one pixel's width would have to become 1280 x 20 million to cover 1280 x 704.
TEST(PictureFit, TheNarrowestPicturesTakeNoMoreMemoryThanTheirResult) {
  Frame line(1, 16384);
  for (int y = 0; y < line.height; ++y) line.at(0, y)[1] = static_cast<uint8_t>(y & 255);
  const Frame covered = fit_picture(line, 1280, 704, PictureFit::kCover);
  EXPECT_EQ(covered.at(0, 0)[0], 0);
  EXPECT_EQ(covered.rgb.size(), size_t{3} * 1280 * 704);
  const Frame contained = fit_picture(line, 1280, 704, PictureFit::kContain);
  EXPECT_EQ(contained.at(0, 350)[1], 0);
  EXPECT_GT(contained.at(639, 350)[1], 100);  // the mean of 0 ... 255
  EXPECT_EQ(contained.at(640, 350)[1], 0);
  const Frame crop = centre_crop(line, 224, 224, 224, ResizeFilter::kBicubic);
  EXPECT_EQ(crop.rgb.size(), size_t{3} * 224 * 224);
}

TEST(PicturePixels, PlanesInEitherRange) {
  Frame picture(2, 1);
  picture.rgb = {0, 51, 255, 10, 20, 30};
  Tensor out(DType::kF32, {3, 1, 2});
  picture_pixels(picture, PixelRange::kUnit, out);
  const std::vector<float> unit(out.as<float>(), out.as<float>() + 6);
  EXPECT_EQ(unit, (std::vector<float>{0, 10.f / 255, 51.f / 255, 20.f / 255, 1, 30.f / 255}));
  picture_pixels(picture, PixelRange::kSigned, out);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(out.as<float>()[i], 2 * unit[static_cast<size_t>(i)] - 1);
}

std::string settings(const std::string& kind) {
  if (kind == "crop") return R"({"size": {"shortest_edge": 20}, "crop_size": 20})";
  if (kind == "small")
    return R"({"size": {"shortest_edge": 11}, "crop_size": {"height": 20, "width": 20}})";
  if (kind == "squash")
    return R"({"size": {"height": 20, "width": 20}, "do_center_crop": false, "resample": 3})";
  return R"({"size": 24, "crop_size": 20, "do_normalize": false})";
}

TEST(ClipPixels, EqualTransformersToTheBit) {
  const TempDir dir;
  Tensor out(DType::kF32, {3, 20, 20});
  for (const std::string kind : {"crop", "small", "squash", "unscaled"})
    for (const std::string picture : {"wide", "noise"}) {
      const ClipPreprocessing how =
          read_clip_preprocessing(dir.write("preprocessor_config.json", settings(kind)), 20);
      clip_pixels(expected_frame("in." + picture), how, out);
      const TensorView want = expected().view("clip." + kind + "." + picture);
      ASSERT_EQ(want.bytes(), out.view().bytes());
      EXPECT_EQ(std::memcmp(out.view().data, want.data, want.bytes()), 0) << kind << picture;
    }
}

TEST(ClipPixels, DefaultsWithoutAFileAndRefusalsThatNameTheField) {
  const TempDir dir;
  EXPECT_EQ(read_clip_preprocessing(dir / "none.json", 336).shortest_edge, 336);
  const auto refused = [&](const std::string& text, const std::string& part) {
    expect_error(ErrorKind::kModel, part,
                 [&] { read_clip_preprocessing(dir.write("p.json", text), 20); });
  };
  refused(R"({"crop_size": 24})", "\"crop_size\" is 24 x 24 (legal: 20 x 20");
  refused(R"({"size": {"height": 20, "width": 21}})", "\"size\" is 20 x 21 (legal: 20 x 20");
  refused(R"({"size": {"shortest_edge": 0}})", "shortest_edge");
  refused(R"({"size": {"shortest_edge": 100000}})", "shortest_edge");
  refused(R"({"size": {"longest_edge": 20}})", "height");
  refused(R"({"resample": 2})", "\"resample\" is 2 (legal: 1, 3");
  refused(R"({"do_center_crop": false})", "do_center_crop");
  refused(R"({"image_std": [1, 0, 1]})", "\"image_std\" is 0");
  refused(R"({"image_mean": [1, 0]})", "\"image_mean\" is 2 numbers (legal: 3 numbers)");
  refused(R"({"image_mean": [1, NaN, 0]})", "image_mean");
  refused(R"({"image_mean": [1, 1e200, 0]})", "-1e4 to 1e4");  // infinite as f32
  refused(R"({"image_std": [1, 1e-39, 1]})", "1e-4 to 1e4");
  refused(R"({"rescale_factor": -1})", "rescale_factor");
  refused(R"({"rescale_factor": 1e300})", "above 0, up to 1e4");
  refused("[]", "an object is due");
}

}  // namespace
}  // namespace weft::test
