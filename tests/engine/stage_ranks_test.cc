// The choice of the ranks that encode text and have the VAE, under rates and links that show by
// themselves which is the fastest.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/planned_job.h"

namespace weft::test {
namespace {

constexpr double kLatencyS = 1e-3;

size_t at(OpFamily family) { return static_cast<size_t>(family); }

// A job on a device that takes no time for anything.
PlannedJob free_job(const Link& link) {
  PlannedJob job = planned("models/pocket", link);
  job.machine.device = {};
  return job;
}

Layout cfg_layout(int ranks, int text_ranks, int vae_ranks) {
  Layout layout;
  layout[Axis::kCfg] = 2;
  layout[Axis::kLayers] = ranks / 2;
  layout.text_ranks = text_ranks;
  layout.vae_ranks = vae_ranks;
  return layout;
}

std::vector<Layout> with_all_stages(const std::vector<Layout>& layouts) {
  std::vector<Layout> out;
  for (const Layout& layout : layouts)
    for (const Layout& text : with_stage_ranks(layout, &Layout::text_ranks))
      for (const Layout& both : with_stage_ranks(text, &Layout::vae_ranks)) out.push_back(both);
  return out;
}

Layout chosen(const PlannedJob& job, int ranks) {
  return choose_layout(job, legal(job, ranks)).best.front().layout;
}

// The pocket model's text encoder has two layers with two sums each. A sum over two ranks waits for
// one message there and one back, and the job has two prompts. One rank computes the whole in no
// time; its rows of both prompts travel at the same time.
TEST(StageRanks, TextOfOneRankWaitsForOneMessage) {
  const PlannedJob job = free_job({.latency_s = kLatencyS, .bytes_per_s = 0});
  QuickForecast quick(job);
  EXPECT_NEAR(quick(cfg_layout(2, 1, 0)).stage("encode_text"), kLatencyS, 1e-9);
  EXPECT_NEAR(quick(cfg_layout(2, 2, 0)).stage("encode_text"), 2 * 2 * 2 * 2 * kLatencyS, 1e-9);
  EXPECT_EQ(chosen(job, 2).text_ranks, 1);
}

// Over links that take no time the width is split as far as the four heads go.
TEST(StageRanks, TextIsSplitOverFreeLinks) {
  PlannedJob job = free_job({});
  job.machine.device.flop_per_s[at(OpFamily::kLinear)] = 1e9;
  QuickForecast quick(job);
  const auto text_s = [&](int ranks) {
    return quick(cfg_layout(4, ranks, 0)).stage("encode_text");
  };
  EXPECT_NEAR(text_s(2) / text_s(1), 0.5, 1e-6);
  EXPECT_NEAR(text_s(4) / text_s(1), 0.25, 1e-6);
  EXPECT_EQ(text_s(0), text_s(4));
}

// A decoder that takes long is worth its messages even on the slow link; one that takes no time is
// worth none. What the denoising takes has no say.
TEST(StageRanks, AHugeDecoderIsSplitAndATinyOneIsNot) {
  for (const double linear : {0.0, 1e10}) {
    PlannedJob job = free_job({.latency_s = kLatencyS, .bytes_per_s = 1e8});
    job.machine.device.flop_per_s[at(OpFamily::kLinear)] = linear;
    EXPECT_EQ(chosen(job, 4).vae_ranks, 1) << linear;
    job.machine.device.flop_per_s[at(OpFamily::kConv)] = 1e8;
    EXPECT_EQ(chosen(job, 4).vae_ranks, 0) << linear;
    QuickForecast quick(job);
    const double alone_s = quick(cfg_layout(4, 1, 1)).stage("decode"),
                 half_s = quick(cfg_layout(4, 1, 2)).stage("decode"),
                 all_s = quick(cfg_layout(4, 1, 4)).stage("decode");
    EXPECT_NEAR(half_s / alone_s, 0.5, 0.1);
    EXPECT_NEAR(all_s / alone_s, 0.25, 0.1);
  }
}

// The fewest messages win where computing takes no time: the branches of guidance on two ranks
// meet once in a step, and the other splits in every block.
TEST(StageRanks, AFastCardOnASlowLinkSplitsGuidanceFirst) {
  const PlannedJob fast = free_job(kSlow);
  EXPECT_EQ(chosen(fast, 2)[Axis::kCfg], 2);
  EXPECT_EQ(chosen(fast, 4)[Axis::kUlysses], 1);
  PlannedJob slow = free_job(kFast);
  slow.machine.device.flop_per_s.fill(1e9);
  EXPECT_EQ(chosen(slow, 4)[Axis::kLayers], 1);  // stages wait for each other
}

TEST(StageRanks, WholeSimulationsAgree) {
  const PlannedJob job = planned("models/pocket", kSlow);
  QuickForecast quick(job);
  for (const int text : {1, 2, 0})
    for (const int vae : {1, 2, 0}) {
      const Layout layout = cfg_layout(4, text, vae);
      const Forecast few = quick(layout), whole = forecast_whole(job, layout);
      EXPECT_NEAR(few.seconds / whole.seconds, 1, 0.01) << to_string(layout);
      for (const char* stage : {"encode_text", "decode"})
        EXPECT_NEAR(few.stage(stage) / whole.stage(stage), 1, 0.01)
            << to_string(layout) << " " << stage;
    }
}

// A message that comes earlier may take its turn before another one that is needed sooner, which
// makes a difference of some parts in a million.
TEST(StageRanks, AFasterLinkIsNeverSlower) {
  PlannedJob job = planned("models/pocket", kSlow);
  std::vector<Layout> layouts = with_all_stages(legal(job, 2));
  for (const Layout& layout : legal(job, 4)) layouts.push_back(layout);
  std::vector<double> before(layouts.size(), HUGE_VAL);
  for (const Link& link :
       {kSlow, Link{1e-3, 1e9}, Link{1e-4, 1e9}, Link{1e-5, 1e10}, kFast, Link{}}) {
    job.machine.link = link;
    QuickForecast quick(job);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const double seconds = quick(layouts[i]).seconds;
      EXPECT_LE(seconds, before[i] * (1 + 1e-4)) << to_string(layouts[i]) << " " << link.latency_s;
      before[i] = seconds;
    }
  }
}

TEST(StageRanks, NoLayoutIsFasterThanTheChosenOne) {
  for (const Link& link : {kSlow, Link{1e-4, 1e9}, kFast})
    for (const int ranks : {2, 4}) {
      const PlannedJob job = planned("models/pocket", link);
      const std::vector<Layout> layouts = legal(job, ranks);
      const LayoutChoice choice = choose_layout(job, layouts);
      QuickForecast quick(job);
      double least_s = HUGE_VAL;
      for (const Layout& layout : with_all_stages(layouts))
        least_s = std::min(least_s, quick(layout).seconds);
      EXPECT_LE(choice.best.front().seconds, kAlike * kStageGain * least_s)
          << to_string(choice.best.front().layout);
      EXPECT_EQ(choice.best.front().seconds, quick(choice.best.front().layout).seconds);
    }
}

TEST(StageRanks, GivenOnesStay) {
  const PlannedJob job = planned("models/pocket", kSlow);
  std::vector<Layout> layouts = legal(job, 4);
  for (Layout& layout : layouts) layout.text_ranks = 3, layout.decode_rank = 2;
  const Layout layout = choose_layout(job, layouts).best.front().layout;
  EXPECT_EQ(layout.text_ranks, 3);
  EXPECT_EQ(layout.decode_rank, 2);
  EXPECT_EQ(layout.vae_ranks, 0);
}

// On the slow link one rank decodes. With less memory than it needs, more ranks share the rows.
TEST(StageRanks, ALimitOfTheMemorySpreadsTheDecoder) {
  PlannedJob job = planned("models/pocket", kSlow);
  const std::vector<Layout> layouts = legal(job, 4);
  const Forecast roomy = choose_layout(job, layouts).best.front();
  ASSERT_EQ(roomy.layout.vae_ranks, 1);
  job.options.memory_limit = 1;  // one part at a time
  Forecast least;
  least.memory = memory_of(job, roomy.layout);
  job.options.memory_limit = least.high_water() - 1;
  const Forecast tight = choose_layout(job, layouts).best.front();
  EXPECT_TRUE(tight.fits());
  EXPECT_NE(tight.layout.vae_ranks, 1);
  EXPECT_GE(tight.seconds, roomy.seconds);
}

}  // namespace
}  // namespace weft::test
