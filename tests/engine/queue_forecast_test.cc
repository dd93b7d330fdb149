// The forecast of the block queue, compared with whole simulations.
#include "engine/planning/queue_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/small_job.h"

namespace weft::test {
namespace {

const Link kFast{.latency_s = 1e-6, .bytes_per_s = 1e11},
    kSlow{.latency_s = 10e-3, .bytes_per_s = 1e8};

PlannedJob planned(const std::string& model, const Link& link, int frames, int steps) {
  PlannedJob job{.model = std::make_shared<const OpenModel>(model),
                 .options = options_of(DType::kF32),
                 .request = {},
                 .machine = {.device = {}, .link = link}};
  job.machine.device.flop_per_s.fill(100e9);
  job.machine.device.bytes_per_s.fill(10e9);
  job.machine.device.copy_bytes_per_s = 5e9;
  job.machine.device.message_s = 30e-6;
  job.options.ops = &metered_ops();
  job.options.memory_limit = UINT64_MAX;
  job.request.prompt = "a big red ball";
  job.request.frames = frames;
  job.request.steps = steps;
  job.request.method = parse_method("queue:block=2,context=1", "method");
  job.request = Generator(job.model, job.options).resolve(job.request);
  return job;
}

std::vector<Layout> legal(const PlannedJob& job, int ranks) {
  return parse_layouts("all", ranks, Generator(job.model, job.options).layout_limits(job.request));
}

void expect_like_whole(const PlannedJob& job, int ranks) {
  QueueForecast quick(job);
  for (const Layout& layout : legal(job, ranks)) {
    const Forecast whole = forecast_whole(job, layout), few = quick(layout);
    const std::string what = to_string(layout);
    EXPECT_NEAR(few.seconds / whole.seconds, 1, 0.02) << what;
    EXPECT_NEAR(few.stage("denoise") / whole.stage("denoise"), 1, 0.02) << what;
    for (int rank = 0; rank < ranks; ++rank)
      for (const Payload payload : {Payload::kHidden, Payload::kLatent, Payload::kVelocity}) {
        const auto kind = static_cast<size_t>(payload);
        EXPECT_EQ(few.ranks[rank].counters.sent[kind], whole.ranks[rank].counters.sent[kind])
            << what << " " << to_string(payload);
      }
  }
}

TEST(QueueForecast, IsTheTimeOfTheWholeJob) {
  for (const Link& link : {kFast, kSlow})
    for (const int ranks : {1, 2, 3, 4})
      expect_like_whole(planned("models/pocket", link, 81, 12), ranks);
}

// Fewer blocks than steps, and fewer than stages.
TEST(QueueForecast, HoldsForAShortQueue) {
  expect_like_whole(planned("models/pocket", kSlow, 29, 12), 4);
  expect_like_whole(planned("models/pocket", kSlow, 17, 9), 6);
}

// Many more blocks than steps: most turns are left out.
TEST(QueueForecast, HoldsForALongVideo) {
  for (const Link& link : {kFast, kSlow}) {
    const PlannedJob job = planned("models/pocket", link, 401, 9);
    Layout layout;
    layout[Axis::kLayers] = 3;
    EXPECT_GT(QueueForecast(job).timeline(layout).left_out, 20);
    expect_like_whole(job, 3);
  }
}

TEST(QueueForecast, HoldsForTwoExperts) {
  expect_like_whole(planned("tests/golden/pipeline_two_experts/model", kSlow, 41, 9), 2);
}

TEST(QueueForecast, ChoosesTheFastestLayout) {
  for (const Link& link : {kFast, kSlow}) {
    const PlannedJob job = planned("models/pocket", link, 81, 12);
    const std::vector<Layout> layouts = legal(job, 4);
    double least = INFINITY;
    for (const Layout& layout : layouts)
      least = std::min(least, forecast_whole(job, layout).seconds);
    const LayoutChoice choice = choose_layout(job, layouts);
    EXPECT_LT(forecast_whole(job, choice.best.front().layout).seconds, (kAlike + 0.02) * least);
  }
}

}  // namespace
}  // namespace weft::test
