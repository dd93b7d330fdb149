#include "io/picture/picture_fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/check.h"

namespace weft {
namespace {

constexpr int kWeightBits = 22;  // sums of 8 bits times weights stay below 2^31

double lanczos(double x) {
  if (x < -3 || x >= 3) return 0;
  if (x == 0) return 1;
  const double wide = x * std::numbers::pi, narrow = x / 3 * std::numbers::pi;
  return std::sin(wide) / wide * (std::sin(narrow) / narrow);
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

struct Kernel {
  double (*weight)(double);
  double support;
};

Kernel kernel(ResizeFilter filter) {
  return filter == ResizeFilter::kLanczos ? Kernel{lanczos, 3} : Kernel{bicubic, 2};
}

// One axis of a resize: of `out` pixels that `in` pixels become, those from `begin` on.
struct Axis {
  int in = 0;
  int64_t out = 0, begin = 0;
  int count = 0;
};

// The pixels that one pixel of the result is a weighted sum of.
struct Taps {
  int begin = 0;
  std::vector<int32_t> weights;
};

std::vector<Taps> make_taps(const Axis& axis, const Kernel& kernel) {
  const double scale = static_cast<double>(axis.in) / static_cast<double>(axis.out);
  const double widening = std::max(scale, 1.0);
  const double support = kernel.support * widening;
  std::vector<Taps> taps(static_cast<size_t>(axis.count));
  std::vector<double> values;
  for (size_t i = 0; i < taps.size(); ++i) {
    const double centre = (static_cast<double>(axis.begin + static_cast<int64_t>(i)) + 0.5) * scale;
    const int begin = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int end = std::min(static_cast<int>(centre + support + 0.5), axis.in);
    double sum = 0;
    values.clear();
    for (int x = begin; x < end; ++x) {
      values.push_back(kernel.weight((x - centre + 0.5) * (1 / widening)));
      sum += values.back();
    }
    taps[i].begin = begin;
    for (double value : values) {
      if (sum != 0) value /= sum;
      taps[i].weights.push_back(
          static_cast<int32_t>((value < 0 ? -0.5 : 0.5) + value * (1 << kWeightBits)));
    }
  }
  return taps;
}

// Resizes a picture of rows [first_row, first_row + rows) horizontally.
Frame resized_rows(const Frame& picture, const std::vector<Taps>& taps, int first_row, int rows) {
  Frame out(static_cast<int>(taps.size()), rows);
  for (int y = 0; y < rows; ++y)
    for (size_t x = 0; x < taps.size(); ++x) {
      const uint8_t* in = picture.at(taps[x].begin, first_row + y);
      int32_t sums[3] = {1 << (kWeightBits - 1), 1 << (kWeightBits - 1), 1 << (kWeightBits - 1)};
      for (const int32_t weight : taps[x].weights)
        for (int32_t& sum : sums) sum += *in++ * weight;
      uint8_t* pixel = out.at(static_cast<int>(x), y);
      for (int c = 0; c < 3; ++c)
        pixel[c] = static_cast<uint8_t>(std::clamp(sums[c] >> kWeightBits, 0, 255));
    }
  return out;
}

// Resizes vertically. The picture's rows begin at row `first_row` of the whole picture.
Frame resized_columns(const Frame& picture, const std::vector<Taps>& taps, int first_row) {
  Frame out(picture.width, static_cast<int>(taps.size()));
  std::vector<int32_t> sums(size_t{3} * picture.width);
  for (size_t y = 0; y < taps.size(); ++y) {
    std::ranges::fill(sums, 1 << (kWeightBits - 1));
    for (size_t i = 0; i < taps[y].weights.size(); ++i) {
      const int32_t weight = taps[y].weights[i];
      const uint8_t* row = picture.at(0, taps[y].begin + static_cast<int>(i) - first_row);
      for (size_t c = 0; c < sums.size(); ++c) sums[c] += row[c] * weight;
    }
    uint8_t* row = out.at(0, static_cast<int>(y));
    for (size_t c = 0; c < sums.size(); ++c)
      row[c] = static_cast<uint8_t>(std::clamp(sums[c] >> kWeightBits, 0, 255));
  }
  return out;
}

// Returns a part of the resized picture. Only that part and what it is made of is computed, because
// a narrow picture may have to become very long to cover a size.
Frame resized_part(const Frame& picture, const Axis& x, const Axis& y, ResizeFilter filter) {
  const std::vector<Taps> columns = make_taps(x, kernel(filter));
  const std::vector<Taps> rows = make_taps(y, kernel(filter));
  const int first = rows.front().begin;
  const int end = rows.back().begin + static_cast<int>(rows.back().weights.size());
  return resized_columns(resized_rows(picture, columns, first, end - first), rows, first);
}

void check_picture(const Frame& picture, int width, int height) {
  CHECK(picture.width > 0 && picture.height > 0 && width > 0 && height > 0, picture.width,
        picture.height, width, height);
}

// A resized picture on a canvas of another size.
struct Placement {
  int64_t width = 0, height = 0;  // of the resized picture
  int64_t left = 0, top = 0;      // of the canvas, in the resized picture; negative: bars
};

Frame placed(const Frame& picture, const Placement& to, int width, int height,
             ResizeFilter filter) {
  Frame canvas(width, height);
  const auto part = [](int in, int64_t out, int64_t canvas_begin, int canvas_size) {
    const int64_t begin = std::max<int64_t>(canvas_begin, 0);
    const int64_t end = std::min(canvas_begin + canvas_size, out);
    return Axis{in, out, begin, static_cast<int>(end - begin)};
  };
  const Axis x = part(picture.width, to.width, to.left, width);
  const Axis y = part(picture.height, to.height, to.top, height);
  const Frame inner = resized_part(picture, x, y, filter);
  const int left = static_cast<int>(x.begin - to.left), top = static_cast<int>(y.begin - to.top);
  for (int row = 0; row < inner.height; ++row)
    std::copy_n(inner.at(0, row), size_t{3} * inner.width, canvas.at(left, top + row));
  return canvas;
}

int64_t half_down(int64_t value) { return value >> 1; }  // also below zero

}  // namespace

Frame resized(const Frame& picture, int width, int height, ResizeFilter filter) {
  check_picture(picture, width, height);
  if (picture.width == width && picture.height == height) return picture;
  return resized_part(picture, {picture.width, width, 0, width},
                      {picture.height, height, 0, height}, filter);
}

Frame fit_picture(const Frame& picture, int width, int height, PictureFit fit) {
  check_picture(picture, width, height);
  if (fit == PictureFit::kStretch) return resized(picture, width, height, ResizeFilter::kLanczos);
  const double x = static_cast<double>(width) / picture.width;
  const double y = static_cast<double>(height) / picture.height;
  const double scale = fit == PictureFit::kCover ? std::max(x, y) : std::min(x, y);
  const auto scaled = [&](int side) {
    return std::max<int64_t>(static_cast<int64_t>(std::nearbyint(side * scale)), 1);
  };
  Placement to{scaled(picture.width), scaled(picture.height)};
  if (fit == PictureFit::kCover) {
    to.left = half_down(to.width - width);
    to.top = half_down(to.height - height);
  } else {
    to.left = -half_down(width - to.width);
    to.top = -half_down(height - to.height);
  }
  return placed(picture, to, width, height, ResizeFilter::kLanczos);
}

Frame centre_crop(const Frame& picture, int edge, int width, int height, ResizeFilter filter) {
  check_picture(picture, width, height);
  Placement to{picture.width, picture.height};
  if (edge > 0) {
    const int64_t shorter = std::min(picture.width, picture.height);
    const auto scaled = [&](int side) {
      return side == shorter ? edge : int64_t{edge} * side / shorter;
    };
    to = {scaled(picture.width), scaled(picture.height)};
  }
  to.left = half_down(to.width - width);
  to.top = half_down(to.height - height);
  return placed(picture, to, width, height, filter);
}

}  // namespace weft
