// The choice of a layout by simulation, compared with whole simulations of every layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/engine/planned_job.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

std::vector<Forecast> all_of(const PlannedJob& job, const std::vector<Layout>& layouts) {
  std::vector<Forecast> all;
  for (const Layout& layout : layouts) all.push_back(forecast_whole(job, layout));
  return all;
}

TEST(Forecast, FewStepsAndBlocksGiveTheTimesOfTheWholeJob) {
  for (const Link& link : {kFast, kSlow}) {
    const PlannedJob job = planned("models/pocket", link);
    QuickForecast quick(job);
    for (const int ranks : {1, 3, 4})
      for (const Forecast& whole : all_of(job, legal(job, ranks))) {
        const Forecast few = quick(whole.layout);
        const std::string layout = to_string(whole.layout);
        EXPECT_NEAR(few.seconds / whole.seconds, 1, 0.01) << layout;
        EXPECT_NEAR(few.stage("denoise") / whole.stage("denoise"), 1, 0.02) << layout;
        EXPECT_NEAR(few.stage("decode") / whole.stage("decode"), 1, 0.01) << layout;
        EXPECT_LE(quick.at_least(whole.layout).seconds, few.seconds) << layout;
        EXPECT_LE(quick.at_least(whole.layout).stage("denoise"), 1.001 * whole.stage("denoise"))
            << layout;
      }
  }
}

// Two experts with two blocks each, and a picture, which has one chunk.
TEST(Forecast, HoldsForTwoExpertsAndForPictures) {
  for (const PlannedJob& job : {planned("tests/golden/pipeline_two_experts/model", kSlow),
                                planned("models/pocket", kSlow, 1)}) {
    QuickForecast quick(job);
    for (const Forecast& whole : all_of(job, legal(job, 2)))
      EXPECT_NEAR(quick(whole.layout).seconds / whole.seconds, 1, 0.02) << to_string(whole.layout);
  }
}

// The layouts that a choice shows, by the simulated times of all, fastest first: of the layouts
// that take about as long as the fastest, the first of `layouts` is chosen.
std::vector<Layout> expected_choice(const std::vector<Forecast>& all,
                                    const std::vector<Layout>& layouts) {
  std::vector<Layout> shown, alike;
  for (const Forecast& one : all) {
    if (one.seconds <= kAlike * all.front().seconds) alike.push_back(one.layout);
    shown.push_back(one.layout);
  }
  const auto chosen = *std::ranges::find_if(
      layouts, [&](const Layout& one) { return std::ranges::count(alike, one) > 0; });
  std::erase(shown, chosen);
  return {chosen, shown.at(0), shown.at(1)};
}

// Exact and displaced steps, which take turns.
TEST(Forecast, HoldsForDisplacedPatches) {
  for (const char* method :
       {"distrifusion:patches=2,warmup=3", "pcpp:patches=4,warmup=1,resync=4",
        "distrifusion:patches=2,warmup=3,code=fp8",
        "pcpp:patches=4,window=1,last_window=0.1,warmup=1,code=residual-fp8,resync=4",
        "pipefusion:patches=4,warmup=1", "pipefusion:patches=4,warmup=1,resync=4"})
    for (const Link& link : {kFast, kSlow}) {
      const PlannedJob job = planned("models/pocket", link, 0, method, 12);
      QuickForecast quick(job);
      for (const Forecast& whole : all_of(job, legal(job, 2)))
        EXPECT_NEAR(quick(whole.layout).stage("denoise") / whole.stage("denoise"), 1, 0.1)
            << method << " " << to_string(whole.layout);
    }
}

// The ranks of the stages that are no axes are given, so that whole simulations of the axes alone
// are all there is.
TEST(LayoutChoice, IsTheMinimumOfAllLayouts) {
  for (const Link& link : {kFast, kSlow})
    for (const int ranks : {2, 4, 6}) {
      const PlannedJob job = planned("models/pocket", link);
      std::vector<Layout> layouts = legal(job, ranks);
      for (Layout& layout : layouts) layout.text_ranks = layout.vae_ranks = ranks;
      std::vector<Forecast> all = all_of(job, layouts);
      std::ranges::stable_sort(all, {}, &Forecast::seconds);
      const LayoutChoice choice = choose_layout(job, layouts);
      ASSERT_EQ(choice.best.size(), 3u);
      EXPECT_EQ(choice.too_large, 0);
      const std::vector<Layout> expected = expected_choice(all, layouts);
      EXPECT_EQ(to_string(choice.best[0].layout), to_string(expected[0]));
      // Times that differ by less than a quick forecast's error may change places.
      const auto seconds = [&](const Layout& layout) {
        return std::ranges::find(all, layout, &Forecast::layout)->seconds;
      };
      for (const int place : {1, 2})
        EXPECT_NEAR(seconds(choice.best[place].layout) / seconds(expected[place]), 1, 0.01)
            << place << ": " << to_string(choice.best[place].layout);
    }
}

// A transformer of Wan 14B's width, by its shapes alone.
PlannedJob planned_14b(const Link& link, const std::string& folder) {
  namespace fs = std::filesystem;
  fs::remove_all(folder);
  fs::copy("models/pocket", folder, fs::copy_options::recursive);
  const std::string path = folder + "/transformer/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config.update({{"num_layers", 17},
                 {"num_attention_heads", 40},
                 {"attention_head_dim", 128},
                 {"ffn_dim", 13824}});
  std::ofstream(path) << config;
  PlannedJob job = planned(folder, link);
  job.model = std::make_shared<const OpenModel>(*job.model, 16);
  job.request.width = 1280;
  job.request.height = 720;
  job.request.frames = 81;
  job.machine.device.flop_per_s.fill(400e12);
  job.machine.device.bytes_per_s.fill(3e12);
  job.machine.device.copy_bytes_per_s = 0;
  return job;
}

// Layouts that cannot be the fastest are not simulated, which changes no choice.
TEST(LayoutChoice, IsThatOfAnExhaustiveSearchForLargeShapes) {
  const std::string folder = testing::TempDir() + "/weft_forecast_model";
  for (const double gbit : {10, 100, 3600}) {
    const PlannedJob job = planned_14b({.latency_s = 1e-5, .bytes_per_s = gbit / 8 * 1e9}, folder);
    const std::vector<Layout> layouts = legal(job, 8);
    QuickForecast quick(job);
    std::vector<Forecast> all;
    for (const Layout& layout : layouts) all.push_back(quick(layout));
    std::ranges::stable_sort(all, {}, &Forecast::seconds);
    const LayoutChoice choice = choose_layout(job, layouts);
    ASSERT_EQ(choice.best.size(), 3u);
    const std::vector<Layout> expected = expected_choice(all, layouts);
    for (int place = 0; place < 3; ++place)
      EXPECT_EQ(to_string(choice.best[place].layout), to_string(expected[place]))
          << gbit << " Gbit/s, place " << place;
    EXPECT_LT(choice.simulated, static_cast<int>(layouts.size() / 2)) << gbit << " Gbit/s";
  }
  std::filesystem::remove_all(folder);
}

// Links are measured anew for every job. Where another measurement makes little difference, the
// layout stays, although another one is the fastest.
TEST(LayoutChoice, IsTheSameOnRatesThatHardlyDiffer) {
  PlannedJob job = planned("models/pocket", kFast);
  job.machine.device = {};
  job.machine.device.flop_per_s.fill(100e9);
  job.machine.device.bytes_per_s.fill(10e9);
  const std::vector<Layout> layouts =
      parse_layouts("auto", 4, Generator(job.model, job.options).layout_limits(job.request));
  const auto fastest = [&] {
    QuickForecast quick(job);
    const auto seconds = [&](const Layout& layout) { return quick(layout).seconds; };
    return to_string(*std::ranges::min_element(layouts, {}, seconds));
  };
  std::map<std::string, int> fastest_ones, chosen_ones;
  for (const double microseconds : {10, 12, 14, 16, 18, 20}) {
    job.machine.link = {.latency_s = microseconds * 1e-6, .bytes_per_s = 12.5e9};
    ++fastest_ones[fastest()];
    ++chosen_ones[to_string(choose_layout(job, layouts).best.front().layout)];
  }
  EXPECT_GT(fastest_ones.size(), 1u);
  EXPECT_EQ(chosen_ones.size(), 1u);
}

// A layout with a sum or an exchange in every block is only worth it on fast links.
TEST(LayoutChoice, DependsOnTheLink) {
  const auto bytes_of_best = [](const Link& link) {
    const PlannedJob job = planned("models/pocket", link);
    const Layout best = choose_layout(job, legal(job, 6)).best.front().layout;
    int64_t bytes = 0;
    for (const SimulatedRank& rank : forecast_whole(job, best).ranks)
      bytes += rank.counters.total_sent().bytes;
    return std::pair(to_string(best), bytes);
  };
  const auto [fast, many] = bytes_of_best(kFast);
  const auto [slow, few] = bytes_of_best(kSlow);
  EXPECT_NE(fast, slow);
  EXPECT_GT(many, 2 * few) << fast << " " << slow;
}

// The least memory with which a layout can run, which loads one part at a time.
uint64_t least_memory(PlannedJob job, const Layout& layout) {
  job.options.memory_limit = 1;
  Forecast forecast;
  forecast.memory = memory_of(job, layout);
  return forecast.high_water();
}

TEST(LayoutChoice, LeavesOutWhatDoesNotFit) {
  PlannedJob job = planned("models/pocket", kFast);
  const std::vector<Layout> layouts = legal(job, 4);
  const Layout fastest = choose_layout(job, layouts).best.front().layout;
  const uint64_t too_little = least_memory(job, fastest) - 1;
  std::vector<Layout> small = layouts;
  std::erase_if(small, [&](const Layout& one) { return least_memory(job, one) > too_little; });
  ASSERT_FALSE(small.empty());
  const std::string expected = to_string(choose_layout(job, small).best.front().layout);

  job.options.memory_limit = too_little;
  const LayoutChoice choice = choose_layout(job, layouts);
  EXPECT_EQ(to_string(choice.best.front().layout), expected);
  EXPECT_GT(choice.too_large, 0);
  for (const Forecast& one : choice.best) EXPECT_TRUE(one.fits());

  job.options.memory_limit = 1;
  const LayoutChoice none = choose_layout(job, layouts);
  ASSERT_EQ(none.best.size(), 1u);
  EXPECT_FALSE(none.best.front().fits());
  for (const Layout& layout : layouts)
    EXPECT_LE(none.best.front().high_water(), least_memory(job, layout)) << to_string(layout);
}

TEST(LayoutChoice, SharesPromptsAmongReplicas) {
  PlannedJob job = planned("models/pocket", kSlow);
  job.requests = 4;
  LayoutLimits limits = Generator(job.model, job.options).layout_limits(job.request);
  limits.requests = 4;
  const LayoutChoice choice = choose_layout(job, legal_layouts(4, limits));
  EXPECT_EQ(to_string(choice.best.front().layout), "data=4");
  EXPECT_DOUBLE_EQ(choice.best.front().seconds,
                   QuickForecast(planned("models/pocket", kSlow))({}).seconds);
}

// The error of a job that does not fit names layouts under which it does.
TEST(Refusal, OffersLayoutsThatFit) {
  PlannedJob job = planned("models/pocket", kFast);
  const std::vector<Layout> layouts = legal(job, 4);
  const auto [least, most] = std::ranges::minmax_element(
      layouts, {}, [&](const Layout& layout) { return least_memory(job, layout); });
  job.options.memory_limit = least_memory(job, *least);
  std::string text;
  simulate(1, {}, {}, [&](Communicator&) {
    text = Generator(job.model, job.options, RankPlacement(*most, 0)).refusal(job.request);
  });
  EXPECT_TRUE(contains(text, "Try --layout " + to_string(*least) + " ("));
}

}  // namespace
}  // namespace weft::test
