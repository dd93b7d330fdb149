// The drawing of plans: well-formed XML, and a rectangle for every forward and every decoded clip.
#include "parallel/schedule/timeline_svg.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "parallel/schedule/segment_queue.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

constexpr int kRanks = 2;
constexpr double kForward_s = 1, kDecode_s = 2.5;

// Two stages and so many blocks of three steps; the first rank decodes.
std::vector<Plan> plans_of(int blocks) {
  QueuePlanConfig config;
  config.steps.assign(3, {.model = 0, .branches = 1});
  config.segments = blocks;
  config.segment_frames = 2;
  config.context_frames = 1;
  config.frame_tokens = 6;
  config.layers = {4};
  config.layout[Axis::kLayers] = kRanks;
  config.hidden_bytes = 96;
  config.latent_bytes = 256;
  return plan_queue(config);
}

std::vector<std::vector<StepTime>> times_of(std::span<const Plan> plans) {
  return time_plans(plans, {}, {}, [](const Step& step, int) {
    if (step.kind == Step::Kind::kDecode) return kDecode_s;
    return step.kind == Step::Kind::kCompute ? kForward_s : 0;
  });
}

std::string drawn(std::span<const Plan> plans, const std::vector<std::vector<StepTime>>& times) {
  return plan_svg(plans, times, "a < b & c", [](const Pass& pass) {
    return std::to_string(pass.segment) + "." + std::to_string(pass.step);
  });
}

// Returns what is not well formed; "" where all is.
std::string fault_of(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = 0;
  for (size_t begin = 0; (begin = xml.find('<', at)) != std::string::npos;) {
    const std::string text = xml.substr(at, begin - at);
    if (text.find('>') != std::string::npos) return "text: " + text;
    for (size_t mark = 0; (mark = text.find('&', mark)) != std::string::npos; ++mark)
      if (text.compare(mark, 4, "&lt;") != 0 && text.compare(mark, 5, "&amp;") != 0)
        return "text: " + text;
    if (at > 0 && open.empty()) return "second root at " + std::to_string(begin);
    const size_t end = xml.find('>', begin);
    if (end == std::string::npos) return "a tag without an end";
    const std::string tag = xml.substr(begin, end + 1 - begin);
    if (tag.find('<', 1) != std::string::npos || std::ranges::count(tag, '"') % 2 == 1)
      return "tag: " + tag;
    const bool closes = tag[1] == '/';
    const std::string name = tag.substr(1 + closes, tag.find_first_of(" />", 2) - 1 - closes);
    if (closes && (open.empty() || open.back() != name)) return "closes: " + tag;
    if (closes)
      open.pop_back();
    else if (tag[tag.size() - 2] != '/')
      open.push_back(name);
    at = end + 1;
  }
  if (!open.empty()) return "open: " + open.back();
  return xml.substr(at) == "\n" ? "" : "behind the end: " + xml.substr(at);
}

struct Bar {
  double x, y, width;
};
// The rectangles of forwards and clips: all but the background and the rows that they are drawn on.
std::vector<Bar> bars_of(const std::string& svg) {
  static const std::regex rect(
      R"re(<rect x="([0-9.]+)" y="([0-9.]+)" width="([0-9.]+)" height="18.00")re");
  std::vector<Bar> bars;
  for (std::sregex_iterator found(svg.begin(), svg.end(), rect), end; found != end; ++found)
    if (const double width = std::stod((*found)[3]); width < 920)
      bars.push_back({std::stod((*found)[1]), std::stod((*found)[2]), width});
  return bars;
}

TEST(PlanSvg, IsWellFormed) {
  EXPECT_EQ(fault_of("<a><b/></a>\n"), "");
  EXPECT_NE(fault_of("<a><b></a>\n"), "");
  EXPECT_NE(fault_of("<a>x < y</a>\n"), "");
  for (const int blocks : {1, 2, 40}) {
    const std::vector<Plan> plans = plans_of(blocks);
    EXPECT_EQ(fault_of(drawn(plans, times_of(plans))), "") << blocks;
  }
}

// So few forwards fit into each of the three enlarged parts, which then show the same.
TEST(PlanSvg, HasARectanglePerForwardAndClip) {
  const std::vector<Plan> plans = plans_of(2);
  const auto times = times_of(plans);
  double end_s = 0;
  for (const auto& of_rank : times) end_s = std::max(end_s, of_rank.back().end_s);
  const std::string svg = drawn(plans, times);
  const std::vector<Bar> bars = bars_of(svg);
  const double scale = 920 / end_s;
  size_t next = 0;
  for (int part = 0; part < 3; ++part)
    for (int rank = 0; rank < kRanks; ++rank) {
      double behind = 0;
      int steps = 0;
      for (size_t i = 0; i < times[rank].size(); ++i) {
        const Step& step = plans[rank].steps[i];
        if (step.kind != Step::Kind::kCompute && step.kind != Step::Kind::kDecode) continue;
        ASSERT_LT(next, bars.size());
        const Bar& bar = bars[next++];
        EXPECT_NEAR(bar.x, 70 + scale * times[rank][i].begin_s, 0.02);
        EXPECT_NEAR(bar.width, scale * (times[rank][i].end_s - times[rank][i].begin_s) - 0.7, 0.02);
        EXPECT_GE(bar.x, behind);
        EXPECT_EQ(bar.y, bars[next - 1 - steps].y);  // the row of the rank
        behind = bar.x + bar.width;
        ++steps;
      }
      EXPECT_EQ(steps, rank == 0 ? 3 * 2 + 2 : 3 * 2);
    }
  EXPECT_EQ(next, bars.size());
  for (const char* text : {">0.0<", ">1.2<", ">decode 0<", ">decode 1<", ">a &lt; b &amp; c<"})
    EXPECT_TRUE(contains(svg, text)) << text;
}

// The enlarged parts of a long plan are its beginning, its middle and its end.
TEST(PlanSvg, EnlargesBeginningMiddleAndEnd) {
  const std::vector<Plan> plans = plans_of(40);
  const std::string svg = drawn(plans, times_of(plans));
  EXPECT_TRUE(contains(svg, ">0.0<"));
  EXPECT_TRUE(contains(svg, ">39.2<"));
  EXPECT_TRUE(contains(svg, ">decode 17<"));
  EXPECT_TRUE(contains(svg, ">decode 39<"));
  EXPECT_FALSE(contains(svg, ">10.0<"));
  for (const Bar& bar : bars_of(svg)) {
    EXPECT_GE(bar.x, 70);
    EXPECT_LE(bar.x + bar.width, 990.01);
  }
}

}  // namespace
}  // namespace weft::test
