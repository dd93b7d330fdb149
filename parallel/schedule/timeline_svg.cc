#include "parallel/schedule/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace weft {

namespace {

struct Colour {
  const char* name;
  const char* fill;
};
constexpr Colour kWaiting{"waiting for messages", "#d9d4c8"};
constexpr std::array<Colour, kOpFamilies> kFamilies{{{"linear", "#3b6ea5"},
                                                     {"attention", "#c2703d"},
                                                     {"convolution", "#5f8f4e"},
                                                     {"norm", "#8a6fa8"},
                                                     {"rope", "#b3a13c"},
                                                     {"pointwise", "#4f9a99"},
                                                     {"copies and messages", "#8c8c8c"}}};

// The last kind is waiting.
const Colour& colour_of(int kind) { return kind < kOpFamilies ? kFamilies[kind] : kWaiting; }

std::string rectangle(double x, double y, double width, double height, const char* fill) {
  char text[160];
  std::snprintf(text, sizeof text,
                "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n", x, y,
                width, height, fill);
  return text;
}

std::string label(double x, double y, const std::string& text) {
  char head[96];
  std::snprintf(head, sizeof head, "<text x=\"%.1f\" y=\"%.1f\">", x, y);
  std::string escaped;
  for (char c : text) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return head + escaped + "</text>\n";
}

std::string svg_head(int height, const std::string& title) {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1060\" height=\"" +
         std::to_string(height) +
         "\" font-family=\"sans-serif\" font-size=\"12\">\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" +
         label(10, 20, title);
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", seconds);
  return text;
}

}  // namespace

std::string timeline_svg(std::span<const SimulatedRank> ranks, const std::string& title) {
  constexpr int kSlices = 900, kRow = 44, kBar = 34, kLeft = 70, kTop = 70;
  constexpr int kKinds = kOpFamilies + 1;
  double end = 0;
  for (const SimulatedRank& rank : ranks) end = std::max(end, rank.seconds);
  const auto height = kTop + kRow * static_cast<int>(ranks.size()) + 30;
  std::string svg = svg_head(height, title);
  double at = 10;
  for (int kind = 0; kind < kKinds; ++kind) {
    const Colour& colour = colour_of(kind);
    svg += rectangle(at, 34, 12, 12, colour.fill) + label(at + 16, 44, colour.name);
    at += 34 + 7 * static_cast<double>(std::string(colour.name).size());
  }
  for (size_t index = 0; index < ranks.size(); ++index) {
    // The share of every slice that was spent on each kind.
    std::vector<std::array<double, kKinds>> slices(kSlices);
    for (const TimelineSpan& span : ranks[index].spans) {
      const int kind = span.waits ? kOpFamilies : static_cast<int>(span.family);
      const double scale = kSlices / end;
      const int last = std::min(kSlices - 1, static_cast<int>(span.end_s * scale));
      for (int slice = static_cast<int>(span.begin_s * scale); slice <= last; ++slice)
        slices[slice][kind] += std::min(span.end_s * scale, slice + 1.0) -
                               std::max<double>(span.begin_s * scale, slice);
    }
    const double top = kTop + kRow * static_cast<double>(index);
    svg += label(10, top + 22, "rank " + std::to_string(index));
    // One path per kind; slices alike are one rectangle.
    std::array<std::string, kKinds> paths;
    for (int begin = 0; begin < kSlices;) {
      int next = begin + 1;
      while (next < kSlices && slices[next] == slices[begin]) ++next;
      double y = top + kBar;
      for (int kind = 0; kind < kKinds; ++kind) {
        const double share = kBar * std::min(1.0, slices[begin][kind]);
        if (share < 0.05) continue;
        char move[80];
        std::snprintf(move, sizeof move, "M%d %.1fh%dv-%.1fh-%dz", kLeft + begin, y, next - begin,
                      share, next - begin);
        paths[kind] += move;
        y -= share;
      }
      begin = next;
    }
    for (int kind = 0; kind < kKinds; ++kind)
      if (!paths[kind].empty())
        svg += std::string("<path fill=\"") + colour_of(kind).fill + "\" d=\"" + paths[kind] +
               "\"/>\n";
    svg += label(kLeft + kSlices + 6, top + 22, seconds_text(ranks[index].seconds));
  }
  svg += label(kLeft, height - 10, "0 s") +
         label(kLeft + kSlices - 40, height - 10, seconds_text(end));
  return svg + "</svg>\n";
}

namespace {

constexpr int kPlanLeft = 70, kPlanWidth = 920, kPlanRow = 22, kPlanBar = 18;
constexpr std::array<const char*, 8> kClips{"#3b6ea5", "#c2703d", "#5f8f4e", "#8a6fa8",
                                            "#b3a13c", "#4f9a99", "#a8505f", "#70757a"};
constexpr const char *kIdle = "#ece8df", *kDecoding = "#2b2b2b";

// A forward, or the decoding of a clip.
struct DrawnStep {
  StepTime time;
  Pass pass;
  bool decodes;
};
using RankSteps = std::vector<std::vector<DrawnStep>>;

// The steps of [begin_s, end_s), each a rectangle with its name.
std::string window_svg(const RankSteps& ranks, double begin_s, double end_s, double top,
                       const std::function<std::string(const Pass& pass)>& name) {
  constexpr double kLetter = 5.2;  // its width
  const double scale = kPlanWidth / (end_s - begin_s);
  std::string svg = label(kPlanLeft, top - 6, "from " + seconds_text(begin_s)) +
                    label(kPlanLeft + kPlanWidth - 80, top - 6, "to " + seconds_text(end_s));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = top + kPlanRow * static_cast<double>(rank);
    svg += label(10, y + 13, "rank " + std::to_string(rank)) +
           rectangle(kPlanLeft, y, kPlanWidth, kPlanBar, kIdle);
    for (const auto& [time, pass, decodes] : ranks[rank]) {
      if (time.end_s <= begin_s || time.begin_s >= end_s) continue;
      const double from = (std::max(time.begin_s, begin_s) - begin_s) * scale,
                   to = (std::min(time.end_s, end_s) - begin_s) * scale;
      const char* clip = kClips[static_cast<size_t>(pass.segment) % kClips.size()];
      svg += rectangle(kPlanLeft + from, y, std::max(0.5, to - from - 0.7), kPlanBar,
                       decodes ? kDecoding : clip);
      const std::string text = decodes ? "decode " + std::to_string(pass.segment) : name(pass);
      if (to - from > kLetter * static_cast<double>(text.size()) + 2)
        svg += "<g fill=\"white\" font-size=\"9\">" + label(kPlanLeft + from + 2, y + 12, text) +
               "</g>\n";
    }
  }
  return svg;
}

// The share of every slice of the whole time in which a rank computes, and above it the share in
// which it decodes.
std::string shares_svg(const std::vector<DrawnStep>& steps, double end_s, double y) {
  std::array<std::vector<double>, 2> shares;
  for (auto& of_kind : shares) of_kind.resize(kPlanWidth);
  const double scale = kPlanWidth / end_s;
  for (const DrawnStep& step : steps) {
    const double from = step.time.begin_s * scale, to = step.time.end_s * scale;
    for (int at = static_cast<int>(from); at < std::min<double>(kPlanWidth, to); ++at)
      shares[step.decodes][at] += std::min(to, at + 1.0) - std::max<double>(from, at);
  }
  std::array<std::string, 2> paths;
  for (int at = 0; at < kPlanWidth; ++at) {
    double foot = y + kPlanBar;
    for (size_t kind = 0; kind < paths.size(); ++kind) {
      const double height = kPlanBar * std::min(1.0, shares[kind][at]);
      if (height < 0.2) continue;
      char move[64];
      std::snprintf(move, sizeof move, "M%d %.1fh1v-%.1fh-1z", kPlanLeft + at, foot, height);
      paths[kind] += move;
      foot -= height;
    }
  }
  std::string svg = rectangle(kPlanLeft, y, kPlanWidth, kPlanBar, kIdle);
  for (size_t kind = 0; kind < paths.size(); ++kind)
    if (!paths[kind].empty())
      svg += std::string("<path fill=\"") + (kind ? kDecoding : kClips[0]) + "\" d=\"" +
             paths[kind] + "\"/>\n";
  return svg;
}

}  // namespace

std::string plan_svg(std::span<const Plan> plans, std::span<const std::vector<StepTime>> times,
                     const std::string& title,
                     const std::function<std::string(const Pass& pass)>& name) {
  constexpr int kShown = 32, kGap = 50;  // forwards in a window
  RankSteps ranks(plans.size());
  double end_s = 0, forward_s = 0;
  for (size_t rank = 0; rank < plans.size(); ++rank)
    for (size_t i = 0; i < times[rank].size(); ++i) {
      const StepTime& time = times[rank][i];
      end_s = std::max(end_s, time.end_s);
      const Step& step = plans[rank].steps[i];
      const bool decodes = step.kind == Step::Kind::kDecode;
      if (!decodes && step.kind != Step::Kind::kCompute) continue;
      ranks[rank].push_back({time, step.pass, decodes});
      if (!decodes) forward_s = std::max(forward_s, time.end_s - time.begin_s);
    }
  const int panel = kPlanRow * static_cast<int>(ranks.size()) + kGap;
  std::string svg = svg_head(40 + 4 * panel, title);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double y = 60 + kPlanRow * static_cast<double>(rank);
    svg += label(10, y + 13, "rank " + std::to_string(rank)) + shares_svg(ranks[rank], end_s, y);
  }
  svg += label(kPlanLeft, 54, "forwards (blue) and decoding (black) from 0 s") +
         label(kPlanLeft + kPlanWidth - 80, 54, "to " + seconds_text(end_s));
  const double window_s = std::min(end_s, kShown * forward_s);
  int top = 60 + panel;
  for (const double begin_s : {0.0, (end_s - window_s) / 2, end_s - window_s}) {
    svg += window_svg(ranks, begin_s, begin_s + window_s, top, name);
    top += panel;
  }
  return svg + "</svg>\n";
}

}  // namespace weft
