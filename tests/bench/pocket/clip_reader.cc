#include "tests/bench/pocket/clip_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "kernels/check.h"
#include "tests/bench/pocket/shape_fit.h"

namespace weft::pocket {
namespace {

constexpr double kPi = std::numbers::pi;
constexpr double kMinContrast = 60;  // RGB distance under which nothing stands out
constexpr double kNoise = 0.25;      // cover below this is taken for noise

double distance(const Rgb& a, const Rgb& b) {
  return std::sqrt((a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) +
                   (a[2] - b[2]) * (a[2] - b[2]));
}

Rgb pixel(const Frame& frame, int x, int y) {
  const uint8_t* p = frame.at(x, y);
  return {double(p[0]), double(p[1]), double(p[2])};
}

// The ground of a clip: per channel a straight line over the rows.
struct GroundModel {
  Rgb middle{}, slope{};  // value = middle + slope * (row / height - 1/2)

  Rgb at(int y, int height) const {
    const double s = (y + 0.5) / height - 0.5;
    return {middle[0] + slope[0] * s, middle[1] + slope[1] * s, middle[2] + slope[2] * s};
  }
};

// Fits the ground. It starts with the median of all pixels, because the shape covers less than half
// of them. Then it repeatedly fits a line to the pixels within a decreasing distance of the last
// line.
GroundModel fit_ground(const std::vector<Frame>& frames) {
  const int width = frames[0].width, height = frames[0].height;
  GroundModel ground;
  std::array<std::array<int64_t, 256>, 3> histogram{};
  for (const Frame& frame : frames)
    for (size_t i = 0; i < frame.rgb.size(); ++i) ++histogram[i % 3][frame.rgb[i]];
  const int64_t half = static_cast<int64_t>(frames.size()) * width * height / 2;
  for (int c = 0; c < 3; ++c) {
    int64_t seen = 0;
    int level = 0;
    while ((seen += histogram[c][level]) <= half) ++level;
    ground.middle[c] = level;
  }
  for (const double limit : {60.0, 45.0, 35.0, 35.0}) {
    double n = 0, s1 = 0, s2 = 0;
    Rgb v{}, sv{};
    for (const Frame& frame : frames)
      for (int y = 0; y < height; ++y) {
        const double s = (y + 0.5) / height - 0.5;
        const Rgb here = ground.at(y, height);
        for (int x = 0; x < width; ++x) {
          const Rgb p = pixel(frame, x, y);
          if (distance(p, here) > limit) continue;
          n += 1;
          s1 += s;
          s2 += s * s;
          for (int c = 0; c < 3; ++c) {
            v[c] += p[c];
            sv[c] += s * p[c];
          }
        }
      }
    const double determinant = n * s2 - s1 * s1;
    if (determinant <= 0) break;
    for (int c = 0; c < 3; ++c) {
      ground.slope[c] = (n * sv[c] - s1 * v[c]) / determinant;
      ground.middle[c] = (v[c] - ground.slope[c] * s1) / n;
    }
  }
  return ground;
}

// The colour that stands out: the mean of the pixels nearly as far from the ground as any.
std::optional<Rgb> fit_colour(const std::vector<Frame>& frames, const GroundModel& ground) {
  const int width = frames[0].width, height = frames[0].height;
  std::array<int64_t, 512> histogram{};
  const auto for_each = [&](auto&& visit) {
    for (const Frame& frame : frames)
      for (int y = 0; y < height; ++y) {
        const Rgb under = ground.at(y, height);
        for (int x = 0; x < width; ++x) {
          const Rgb p = pixel(frame, x, y);
          visit(p, distance(p, under));
        }
      }
  };
  for_each([&](const Rgb&, double d) { ++histogram[static_cast<size_t>(std::min(d, 511.0))]; });
  // The smallest shape covers about 2 % of the frame.
  const int64_t hundredth = static_cast<int64_t>(frames.size()) * width * height / 100;
  int64_t seen = 0;
  size_t top = histogram.size() - 1;
  while (top > 0 && (seen += histogram[top]) <= hundredth) --top;
  if (static_cast<double>(top) < kMinContrast) return std::nullopt;
  Rgb sum{};
  double n = 0;
  for_each([&](const Rgb& p, double d) {
    if (d < 0.75 * static_cast<double>(top)) return;
    for (int c = 0; c < 3; ++c) sum[c] += p[c];
    n += 1;
  });
  return Rgb{sum[0] / n, sum[1] / n, sum[2] / n};
}

// The fraction of each pixel that the shape covers, 0..1, and the shape's centroid.
struct Mask {
  int width, height;
  std::vector<double> cover;
  double x = 0, y = 0;  // of the centroid on the torus, pixels
  double area = 0;
};

// The mean index (plus a half) of weights on a circle.
double circular_mean(const std::vector<double>& weights) {
  const double n = static_cast<double>(weights.size());
  double c = 0, s = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double angle = 2 * kPi * (static_cast<double>(i) + 0.5) / n;
    c += weights[i] * std::cos(angle);
    s += weights[i] * std::sin(angle);
  }
  return std::atan2(s, c) / (2 * kPi) * n;
}

// Centroid and area: first of everything, by circular means, then of what lies within a shape's
// reach of it, so that specks elsewhere do not pull.
void locate(Mask& mask) {
  std::vector<double> columns(static_cast<size_t>(mask.width)),
      rows(static_cast<size_t>(mask.height));
  for (int y = 0; y < mask.height; ++y)
    for (int x = 0; x < mask.width; ++x) {
      const double a = mask.cover[static_cast<size_t>(y) * mask.width + x];
      columns[static_cast<size_t>(x)] += a;
      rows[static_cast<size_t>(y)] += a;
      mask.area += a;
    }
  mask.x = circular_mean(columns);
  mask.y = circular_mean(rows);
  for (int round = 0; round < 3; ++round) {
    const double reach = 1.3 * std::sqrt(mask.area);
    double area = 0, dx_sum = 0, dy_sum = 0;
    for (int y = 0; y < mask.height; ++y)
      for (int x = 0; x < mask.width; ++x) {
        const double a = mask.cover[static_cast<size_t>(y) * mask.width + x];
        if (a == 0) continue;
        const double dx = around(x + 0.5 - mask.x, mask.width);
        const double dy = around(y + 0.5 - mask.y, mask.height);
        if (dx * dx + dy * dy > reach * reach) continue;
        area += a;
        dx_sum += a * dx;
        dy_sum += a * dy;
      }
    if (area <= 0) return;
    mask.area = area;
    mask.x += dx_sum / area;
    mask.y += dy_sum / area;
  }
}

Mask make_mask(const Frame& frame, const GroundModel& ground, const Rgb& colour) {
  Mask mask{frame.width, frame.height, {}};
  mask.cover.resize(static_cast<size_t>(frame.width) * frame.height);
  for (int y = 0; y < frame.height; ++y) {
    const Rgb under = ground.at(y, frame.height);
    Rgb way;
    double length2 = 0;
    for (int c = 0; c < 3; ++c) {
      way[c] = colour[c] - under[c];
      length2 += way[c] * way[c];
    }
    for (int x = 0; x < frame.width; ++x) {
      const Rgb p = pixel(frame, x, y);
      double dot = 0;
      for (int c = 0; c < 3; ++c) dot += (p[c] - under[c]) * way[c];
      const double a = std::clamp(dot / length2, 0.0, 1.0);
      mask.cover[static_cast<size_t>(y) * frame.width + x] = a < kNoise ? 0 : a;
    }
  }
  locate(mask);
  return mask;
}

// The shape that fits the views best, taken together, and every view's own best fit.
void read_shape(const std::vector<Frame>& frames, const GroundModel& ground, const Rgb& colour,
                ClipReading& reading) {
  std::array<double, kShapes> total{};
  const int last = static_cast<int>(frames.size()) - 1;
  for (int i = 0; i < kViews; ++i) {
    const int index = i * last / (kViews - 1);
    if (i > 0 && index == reading.views.back().frame)
      continue;  // a clip of fewer frames than views
    const Frame& frame = frames[static_cast<size_t>(index)];
    Silhouette silhouette{frame.width, frame.height, {}};
    for (int y = 0; y < frame.height; ++y) {
      const Rgb under = ground.at(y, frame.height);
      for (int x = 0; x < frame.width; ++x)
        if (distance(pixel(frame, x, y), under) > 0.5 * distance(colour, under))
          silhouette.pixels.push_back({x + 0.5, y + 0.5});
    }
    const std::array<double, kShapes> overlap = best_overlaps(silhouette);
    const auto best = std::ranges::max_element(overlap);
    reading.views.push_back({index, Shape(best - overlap.begin()), *best});
    for (int k = 0; k < kShapes; ++k) total[k] += overlap[k];
  }
  reading.shape = Shape(std::ranges::max_element(total) - total.begin());
}

// The sum of squares that remains after the best fit of `columns` functions of the index; their
// coefficients in `fit`. Normal equations of at most 3 unknowns by elimination.
template <size_t N>
double least_squares(const std::vector<double>& values,
                     const std::vector<std::array<double, N>>& columns,
                     std::array<double, N>& fit) {
  double a[N][N + 1] = {};
  for (size_t t = 0; t < values.size(); ++t)
    for (size_t i = 0; i < N; ++i) {
      for (size_t j = 0; j < N; ++j) a[i][j] += columns[t][i] * columns[t][j];
      a[i][N] += columns[t][i] * values[t];
    }
  for (size_t i = 0; i < N; ++i) {
    a[i][i] += 1e-9;  // keeps a degenerate case finite
    for (size_t k = 0; k < N; ++k) {
      if (k == i) continue;
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j <= N; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  for (size_t i = 0; i < N; ++i) fit[i] = a[i][N] / a[i][i];
  double rest = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    double value = values[t];
    for (size_t i = 0; i < N; ++i) value -= fit[i] * columns[t][i];
    rest += value * value;
  }
  return rest;
}

struct CircleFit {
  double rest = 1e30;
  double radius = 0;  // the smaller of the two axes'
};

// The best circle of a period near 24 frames, either way round.
CircleFit fit_circle(const std::vector<double>& x, const std::vector<double>& y,
                     const std::vector<double>& time) {
  CircleFit best;
  for (const double period : {18.0, 20.0, 22.0, 24.0, 26.0, 29.0, 32.0}) {
    std::vector<std::array<double, 3>> columns;
    for (const double t : time)
      columns.push_back({1, std::cos(2 * kPi * t / period), std::sin(2 * kPi * t / period)});
    std::array<double, 3> fx, fy;
    const double rest = least_squares(x, columns, fx) + least_squares(y, columns, fy);
    if (rest >= best.rest) continue;
    best.rest = rest;
    best.radius = std::min(std::hypot(fx[1], fx[2]), std::hypot(fy[1], fy[2]));
  }
  return best;
}

std::optional<Motion> read_motion(const std::vector<Mask>& masks) {
  double largest = 0;
  for (const Mask& mask : masks) largest = std::max(largest, mask.area);
  // Time, place in frame sizes (unwrapped) and log radius of the frames that show something.
  std::vector<double> time, x, y, size;
  for (size_t t = 0; t < masks.size(); ++t) {
    const Mask& mask = masks[t];
    if (mask.area < 0.03 * largest) continue;
    const double u = mask.x / mask.width, v = mask.y / mask.height;
    x.push_back(x.empty() ? u : x.back() + std::remainder(u - x.back(), 1));
    y.push_back(y.empty() ? v : y.back() + std::remainder(v - y.back(), 1));
    time.push_back(static_cast<double>(t));
    size.push_back(0.5 * std::log(mask.area));
  }
  if (time.size() < 5) return std::nullopt;
  const double n = static_cast<double>(time.size());
  const double span = time.back() - time.front();
  // A full clip is 24 frame steps; a shorter window shows less of the same motion.
  const double part = std::min(1.0, span / 24);

  std::vector<std::array<double, 2>> line;
  std::vector<std::array<double, 1>> rest;
  for (const double t : time) {
    line.push_back({1, t});
    rest.push_back({1});
  }
  std::array<double, 2> fit, along_x, along_y;
  least_squares(size, line, fit);
  const double growth = fit[1] * span;  // ln 3 = 1.1 for a whole clip
  if (std::abs(growth) > 0.5 * part) return growth > 0 ? Motion::kGrowing : Motion::kShrinking;

  std::array<double, 1> mean;
  const double spread =
      std::sqrt((least_squares(x, rest, mean) + least_squares(y, rest, mean)) / n);
  // The slowest motion, 0.35 in a clip, has a spread of 0.35 / sqrt(12) = 0.10.
  if (spread < std::max(0.012, 0.045 * part)) return Motion::kStill;

  const double straight = least_squares(x, line, along_x) + least_squares(y, line, along_y);
  const CircleFit circle = fit_circle(x, y, time);
  if (circle.radius > 0.1 && circle.rest < 0.5 * straight) return Motion::kCircling;
  if (std::abs(along_x[1]) > std::abs(along_y[1]))
    return along_x[1] > 0 ? Motion::kRight : Motion::kLeft;
  return along_y[1] > 0 ? Motion::kDown : Motion::kUp;
}

}  // namespace

ClipReading read_clip(const std::vector<Frame>& frames) {
  CHECK(!frames.empty());
  for (const Frame& frame : frames)
    CHECK(frame.width == frames[0].width && frame.height == frames[0].height);
  ClipReading reading;
  const GroundModel ground = fit_ground(frames);
  reading.ground_offset = 1e9;
  for (int i = 0; i < kGrounds; ++i) {
    const double d = distance(ground.middle, rgb_of(Ground(i)));
    if (d >= reading.ground_offset) continue;
    reading.ground_offset = d;
    reading.ground = Ground(i);
  }
  const std::optional<Rgb> colour = fit_colour(frames, ground);
  if (!colour) return reading;
  double nearest = 1e9;
  for (int i = 0; i < kColours; ++i) {
    const double d = distance(*colour, rgb_of(Colour(i)));
    if (d >= nearest) continue;
    nearest = d;
    reading.colour = Colour(i);
  }
  std::vector<Mask> masks;
  for (const Frame& frame : frames) masks.push_back(make_mask(frame, ground, *colour));
  read_shape(frames, ground, *colour, reading);
  if (frames.size() >= 5) reading.motion = read_motion(masks);
  return reading;
}

bool ClipReading::torn() const {
  return views.empty() ||
         std::ranges::any_of(views, [](const View& view) { return view.overlap < kTorn; });
}

bool ClipReading::every_view_shows(Shape kind) const {
  return !views.empty() &&
         std::ranges::all_of(views, [&](const View& view) { return view.shape == kind; });
}

ClipScore score(const ClipReading& reading, const ClipWords& asked) {
  return {!asked.colour || reading.colour == asked.colour,
          !asked.ground || reading.ground == *asked.ground,
          !asked.shape || reading.shape == asked.shape,
          !asked.motion || reading.motion == asked.motion,
          !asked.shape || reading.every_view_shows(*asked.shape),
          reading.torn()};
}

}  // namespace weft::pocket
