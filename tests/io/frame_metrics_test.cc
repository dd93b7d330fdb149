// The expected values come from a direct evaluation of the formulas (one 11x11 window per pixel, in
// Python's f64), not from this code.
#include "io/media/frame_metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft {
namespace {

Frame pattern(int width, int height, int k) {
  Frame frame(width, height);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      uint8_t* rgb = frame.at(x, y);
      rgb[0] = static_cast<uint8_t>(x * 7 + y * 13 + k * 5);
      rgb[1] = static_cast<uint8_t>(x * x + y * 3 + k * 29);
      rgb[2] = static_cast<uint8_t>(x * y + 17 * k + (x ^ y) * k);
    }
  return frame;
}

Frame flat(int width, int height, uint8_t value) {
  Frame frame(width, height);
  std::fill(frame.rgb.begin(), frame.rgb.end(), value);
  return frame;
}

// The values are sums of a few hundred f64 terms of up to 255^2, whose error is far below 1e-9.
constexpr double kTolerance = 1e-9;

TEST(FrameMetrics, AgreeWithTheDirectEvaluation) {
  struct Case {
    int width, height, a, b;
    double mse, psnr, ssim;
  };
  for (const Case& c : {Case{24, 17, 0, 1, 2895.388888888889, 13.513734574139, 0.644203919378},
                        Case{40, 32, 1, 2, 4475.433333333333, 11.622452686653, 0.474921029221},
                        Case{8, 5, 0, 1, 430.5, 21.791072050782, 0.861960284402}}) {
    const Frame a = pattern(c.width, c.height, c.a), b = pattern(c.width, c.height, c.b);
    EXPECT_NEAR(mean_squared_error(a, b), c.mse, kTolerance);
    EXPECT_NEAR(psnr_db(mean_squared_error(a, b)), c.psnr, kTolerance);
    EXPECT_NEAR(ssim(a, b), c.ssim, kTolerance) << c.width << "x" << c.height;
    EXPECT_NEAR(ssim(b, a), c.ssim, kTolerance);
  }
}

TEST(FrameMetrics, EqualPicturesAreAlike) {
  const Frame a = pattern(32, 13, 3);
  EXPECT_EQ(mean_squared_error(a, a), 0);
  EXPECT_TRUE(std::isinf(psnr_db(0)));
  EXPECT_NEAR(ssim(a, a), 1, kTolerance);
}

// Flat pictures have no variance, so SSIM is (2ab + C1) / (a^2 + b^2 + C1).
TEST(FrameMetrics, FlatPicturesInClosedForm) {
  const double c1 = 2.55 * 2.55;
  EXPECT_NEAR(ssim(flat(16, 16, 100), flat(16, 16, 200)),
              (2 * 100.0 * 200 + c1) / (100.0 * 100 + 200.0 * 200 + c1), kTolerance);
  EXPECT_NEAR(psnr_db(mean_squared_error(flat(16, 16, 100), flat(16, 16, 110))),
              20 * std::log10(25.5), kTolerance);
  EXPECT_EQ(mean_squared_error(flat(1, 1, 0), flat(1, 1, 255)), 255 * 255);
}

}  // namespace
}  // namespace weft
