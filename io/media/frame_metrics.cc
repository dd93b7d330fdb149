#include "io/media/frame_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"

namespace weft {
namespace {

// A picture with one value per pixel, rows from the top.
struct Plane {
  int width = 0, height = 0;
  std::vector<double> values;

  Plane(int w, int h) : width(w), height(h), values(size_t(w) * h) {}
  double* row(int y) { return values.data() + size_t(y) * width; }
  const double* row(int y) const { return values.data() + size_t(y) * width; }
};

Plane luma(const Frame& frame) {
  Plane out(frame.width, frame.height);
  for (size_t i = 0; i < out.values.size(); ++i) {
    const uint8_t* rgb = frame.rgb.data() + 3 * i;
    out.values[i] = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
  }
  return out;
}

// Returns a Gaussian of sigma 1.5 at the centres of min(11, side) pixels, normalised to sum 1.
std::vector<double> window(int side) {
  constexpr double kSigma = 1.5;
  std::vector<double> taps(std::min(11, side));
  double sum = 0;
  for (size_t i = 0; i < taps.size(); ++i) {
    const double x = double(i) - (double(taps.size()) - 1) / 2;
    sum += taps[i] = std::exp(-x * x / (2 * kSigma * kSigma));
  }
  for (double& tap : taps) tap /= sum;
  return taps;
}

// Applies the window separably, first along x and then along y. Only whole windows give a value.
Plane filtered(const Plane& in) {
  const std::vector<double> across = window(in.width), down = window(in.height);
  Plane rows(in.width - int(across.size()) + 1, in.height);
  for (int y = 0; y < rows.height; ++y)
    for (size_t tap = 0; tap < across.size(); ++tap)
      for (int x = 0; x < rows.width; ++x) rows.row(y)[x] += across[tap] * in.row(y)[x + tap];
  Plane out(rows.width, in.height - int(down.size()) + 1);
  for (int y = 0; y < out.height; ++y)
    for (size_t tap = 0; tap < down.size(); ++tap)
      for (int x = 0; x < out.width; ++x) out.row(y)[x] += down[tap] * rows.row(y + int(tap))[x];
  return out;
}

Plane product(const Plane& a, const Plane& b) {
  Plane out(a.width, a.height);
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = a.values[i] * b.values[i];
  return out;
}

void check_same_size(const Frame& a, const Frame& b) {
  CHECK(a.width == b.width && a.height == b.height && a.width > 0 && a.height > 0, a.width,
        a.height, b.width, b.height);
}

}  // namespace

double mean_squared_error(const Frame& a, const Frame& b) {
  check_same_size(a, b);
  uint64_t sum = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) {
    const int difference = int(a.rgb[i]) - int(b.rgb[i]);
    sum += static_cast<uint64_t>(difference * difference);
  }
  return static_cast<double>(sum) / static_cast<double>(a.rgb.size());
}

double psnr_db(double mean_squared_error) {
  if (mean_squared_error == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(255.0 * 255.0 / mean_squared_error);
}

double ssim(const Frame& a, const Frame& b) {
  check_same_size(a, b);
  constexpr double kC1 = (0.01 * 255) * (0.01 * 255), kC2 = (0.03 * 255) * (0.03 * 255);
  const Plane x = luma(a), y = luma(b);
  const Plane mean_x = filtered(x), mean_y = filtered(y);
  const Plane xx = filtered(product(x, x)), yy = filtered(product(y, y)),
              xy = filtered(product(x, y));
  double sum = 0;
  for (size_t i = 0; i < mean_x.values.size(); ++i) {
    const double mx = mean_x.values[i], my = mean_y.values[i];
    const double var_x = xx.values[i] - mx * mx, var_y = yy.values[i] - my * my,
                 covariance = xy.values[i] - mx * my;
    sum += (2 * mx * my + kC1) * (2 * covariance + kC2) /
           ((mx * mx + my * my + kC1) * (var_x + var_y + kC2));
  }
  return sum / static_cast<double>(mean_x.values.size());
}

}  // namespace weft
