#include "apps/bench/video/long_plot.h"

#include <algorithm>

#include "apps/bench/video/svg_text.h"

namespace weft {
namespace {

constexpr double kLeft = 60, kWidth = 1000, kPanel = 180, kGap = 50, kTop = 60;
constexpr const char* kColours[] = {"#2b6cb0", "#c05621", "#2f855a", "#805ad5",
                                    "#b7791f", "#c53030", "#4a5568", "#319795"};

const char* colour_of(size_t curve) { return kColours[curve % std::size(kColours)]; }

// A panel over the frames of the video, with values from `low` to `high`.
class Panel {
 public:
  Panel(int index, double frames, double low, double high)
      : top_(kTop + index * (kPanel + kGap)), frames_(frames), low_(low), high_(high) {}

  double x(double frame) const { return kLeft + kWidth * frame / frames_; }
  double y(double value) const {
    const double share = (value - low_) / std::max(high_ - low_, 1e-9);
    return top_ + kPanel * (1 - std::clamp(share, 0.0, 1.0));
  }
  std::string frame(const std::string& title) const {
    return label(kLeft, top_ - 8, title) +
           shaped(
               "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
               "stroke=\"#4a5568\"/>\n",
               kLeft, top_, kWidth, kPanel) +
           label(8, top_ + 10, shaped("%.3g", high_)) +
           label(8, top_ + kPanel, shaped("%.3g", low_));
  }
  // The values of the frames from `first` on.
  std::string line(std::span<const double> values, double first, const char* colour) const {
    std::string path;
    for (size_t i = 0; i < values.size(); ++i)
      path += shaped("%c%.1f %.1f", i ? 'L' : 'M', x(first + static_cast<double>(i)), y(values[i]));
    return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + colour + "\"/>\n";
  }
  std::string dot(double frame, double value, const char* colour, bool filled) const {
    return shaped("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" stroke=\"%s\" fill=\"%s\"/>\n", x(frame),
                  y(value), colour, filled ? colour : "white");
  }

 private:
  double top_, frames_, low_, high_;
};

// The brightness less the mean of the first block.
std::vector<double> drift(const VideoCurve& curve) {
  const size_t count = curve.borders.empty() ? curve.brightness.size() : curve.borders.front();
  double mean = 0;
  for (size_t i = 0; i < count; ++i) mean += curve.brightness[i] / static_cast<double>(count);
  std::vector<double> values = curve.brightness;
  for (double& value : values) value -= mean;
  return values;
}

// The range of a panel. The few values outside lie on its edge.
struct Scale {
  double low, high;
};
Scale scale_of(std::vector<double> values) {
  if (values.empty()) return {0, 1};
  std::ranges::sort(values);
  const size_t few = values.size() / 50;
  const double low = values[few], high = values[values.size() - 1 - few], more = 0.4 * (high - low);
  return {std::max(values.front(), low - more), std::min(values.back(), high + more)};
}

std::string legend(std::span<const VideoCurve> curves) {
  std::string svg;
  double at = kLeft;
  for (size_t i = 0; i < curves.size(); ++i) {
    svg += shaped("<rect x=\"%.1f\" y=\"26\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", at,
                  colour_of(i)) +
           label(at + 16, 36, curves[i].name);
    at += 40 + 7 * static_cast<double>(curves[i].name.size());
  }
  return svg;
}

}  // namespace

std::string long_svg(std::span<const VideoCurve> curves, int64_t stretch_frames,
                     const std::string& title) {
  double frames = 1;
  std::vector<double> all_changes, all_drifts;
  for (const VideoCurve& curve : curves) {
    frames = std::max(frames, static_cast<double>(curve.brightness.size()));
    all_changes.insert(all_changes.end(), curve.changes.begin(), curve.changes.end());
    const std::vector<double> drifts = drift(curve);
    all_drifts.insert(all_drifts.end(), drifts.begin(), drifts.end());
  }
  const Scale drifting = scale_of(all_drifts);
  const Panel changes(0, frames, 0, scale_of(all_changes).high),
      drifts(1, frames, drifting.low, drifting.high), reads(2, frames, 0, 1);
  std::string svg = shaped(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n",
      kLeft + kWidth + 20, kTop + 3 * (kPanel + kGap));
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += label(kLeft, 16, title) + legend(curves);
  svg += changes.frame("mean change from the frame before, in levels; dots are where blocks meet") +
         drifts.frame("mean level less that of the first block") +
         reads.frame("worst overlap of a view with an ideal shape, per stretch of " +
                     std::to_string(stretch_frames) +
                     " frames; filled: colour, shape, motion and ground as asked");
  for (size_t i = 0; i < curves.size(); ++i) {
    const char* colour = colour_of(i);
    svg += changes.line(curves[i].changes, 1, colour);
    for (const int64_t border : curves[i].borders)
      svg += changes.dot(static_cast<double>(border), curves[i].changes[border - 1], colour, true);
    svg += drifts.line(drift(curves[i]), 0, colour);
    const double aside = 5 * (static_cast<double>(i) - static_cast<double>(curves.size() - 1) / 2);
    for (size_t s = 0; s < curves[i].stretches.size(); ++s) {
      const double middle = (static_cast<double>(s) + 0.5) * static_cast<double>(stretch_frames);
      const auto& [overlap, right] = curves[i].stretches[s];
      svg += reads.dot(middle + aside * frames / kWidth, overlap, colour, right);
    }
  }
  svg += label(kLeft, kTop + 3 * (kPanel + kGap) - kGap + 18, "frame 0") +
         label(kLeft + kWidth - 60, kTop + 3 * (kPanel + kGap) - kGap + 18,
               shaped("frame %.0f", frames));
  return svg + "</svg>\n";
}

}  // namespace weft
