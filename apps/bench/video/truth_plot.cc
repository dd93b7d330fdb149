#include "apps/bench/video/truth_plot.h"

#include <algorithm>
#include <cmath>

#include "apps/bench/video/svg_text.h"

namespace weft {
namespace {

constexpr double kLeft = 70, kTop = 60, kWidth = 700, kHeight = 420, kLegend = 450;
constexpr double kLegendLine = 16;

struct Axis {
  double low, high, from, to;  // values, and their places
  double at(double value) const { return from + (to - from) * (value - low) / (high - low); }
};

// 1, 2 or 5 times a power of ten, so that an axis has about five steps.
double step_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 5)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (range / 5 <= factor * power) return factor * power;
  return 10 * power;
}

std::string line(double x0, double y0, double x1, double y1) {
  return shaped("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#cbd5e0\"/>\n", x0,
                y0, x1, y1);
}

}  // namespace

std::string truth_svg(std::span<const TruthPoint> points, const std::string& title) {
  double most = 1, low = 1e9, high = -1e9;
  for (const TruthPoint& point : points) {
    most = std::max(most, point.bytes_per_step / 1024);
    if (point.exact()) continue;
    low = std::min(low, point.psnr_db);
    high = std::max(high, point.psnr_db);
  }
  if (low > high) low = high = 30;
  const double exact = std::ceil(high) + 4;  // the line of the exact methods
  const double legend = kTop + kLegendLine * static_cast<double>(points.size());
  const Axis x{0, 1.05 * most, kLeft, kLeft + kWidth};
  const Axis y{std::floor(low) - 1, exact + 1, kTop + kHeight, kTop};
  std::string svg = shaped(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n",
      kLeft + kWidth + kLegend, std::max(kTop + kHeight + 60, legend));
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" + label(kLeft, 20, title);
  const double across = step_of(x.high), up = step_of(exact - y.low);
  for (double value = 0; value <= x.high; value += across)
    svg += line(x.at(value), y.to, x.at(value), y.from) +
           label(x.at(value) - 8, y.from + 18, shaped("%g", value));
  for (double value = std::ceil(y.low / up) * up; value < exact - 2; value += up)
    svg += line(x.from, y.at(value), x.to, y.at(value)) +
           label(kLeft - 34, y.at(value) + 4, shaped("%g", value));
  svg += line(x.from, y.at(exact), x.to, y.at(exact)) + label(kLeft - 40, y.at(exact) + 4, "same") +
         label(kLeft - 60, kTop - 14, "PSNR in dB against full attention") +
         label(kLeft + kWidth - 220, y.from + 38, "KiB sent per step by all ranks");
  for (size_t i = 0; i < points.size(); ++i) {
    const TruthPoint& point = points[i];
    const double at = x.at(point.bytes_per_step / 1024);
    const double height = y.at(point.exact() ? exact : point.psnr_db);
    svg += shaped("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"9\" fill=\"%s\"/>\n", at, height,
                  point.exact() ? "#9ae6b4" : "#90cdf4") +
           label(at - (i < 9 ? 3 : 7), height + 4, shaped("%zu", i + 1)) +
           label(kLeft + kWidth + 20, kTop + kLegendLine * static_cast<double>(i),
                 std::to_string(i + 1) + "  " + point.name);
  }
  return svg + "</svg>\n";
}

}  // namespace weft
