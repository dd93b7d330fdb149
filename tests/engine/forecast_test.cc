// The choice of a layout by simulation.
#include "engine/planning/forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "tests/engine/small_job.h"

namespace weft::test {
namespace {

DeviceModel device() {
  DeviceModel model;
  model.flop_per_s.fill(100e9);
  model.bytes_per_s.fill(10e9);
  model.copy_bytes_per_s = 5e9;
  model.message_s = 30e-6;
  return model;
}

// A clip of the model on ranks with such a link.
PlannedJob planned(const std::string& model, const Link& link, Request request) {
  PlannedJob job{.model = std::make_shared<const OpenModel>(model),
                 .options = options_of(DType::kF32),
                 .request = std::move(request),
                 .machine = {.device = device(), .link = link}};
  job.options.ops = &metered_ops();
  job.options.memory_limit = UINT64_MAX;
  job.request = Generator(job.model, job.options).resolve(job.request);
  return job;
}

Request pocket_clip() {
  Request request;
  request.prompt = "a big red ball, moving left on a navy background";
  request.negative_prompt = "";
  return request;
}

std::vector<Layout> legal(const PlannedJob& job, int ranks) {
  return legal_layouts(ranks, Generator(job.model, job.options).layout_limits(job.request));
}

TEST(Forecast, AutoIsTheMinimumOfAllLayouts) {
  for (const Link& link : {Link{}, Link{.latency_s = 1e-3, .bytes_per_s = 1e8}}) {
    const PlannedJob job = planned("models/pocket", link, pocket_clip());
    for (const int ranks : {2, 3, 4, 6}) {
      const std::vector<Layout> layouts = legal(job, ranks);
      std::vector<Forecast> all;
      for (const Layout& layout : layouts) all.push_back(forecast_whole(job, layout));
      std::ranges::stable_sort(all, {}, &Forecast::seconds);
      const LayoutChoice choice = choose_layout(job, layouts);
      QuickForecast quick(job);
      for (const Forecast& one : all)
        std::printf("%d %s: %.5f %.5f | %.5f %.5f %.5f | %.5f %.5f %.5f\n", ranks, to_string(one.layout).c_str(), one.seconds,
                    quick(one.layout).seconds, one.stage("encode_text"), one.stage("denoise"), one.stage("decode"),quick(one.layout).stage("encode_text"),quick(one.layout).stage("denoise"),quick(one.layout).stage("decode") );
      EXPECT_EQ(to_string(choice.best[0].layout), to_string(all[0].layout));
    }
  }
}

TEST(Forecast, Speed) {
  if (const char* model = getenv("MODEL")) {
    Request clip = pocket_clip();
    if (getenv("BIG")) { clip.width=1280; clip.height=720; clip.frames=81; }
    const auto begun = std::chrono::steady_clock::now();
    PlannedJob job = planned(model, Link{.latency_s = 1e-5, .bytes_per_s = 5e10}, clip);
    const auto layouts = legal(job, 8);
    QuickForecast quick(job);
    for (const Layout& layout : layouts) {
      const auto b = std::chrono::steady_clock::now();
      const double s = quick(layout).seconds;
      std::printf("%s %.4f took %.1f ms\n", to_string(layout).c_str(), s, std::chrono::duration<double>(std::chrono::steady_clock::now() - b).count()*1e3);
    }
    std::printf("%zu layouts, %.3f s\n", layouts.size(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    choose_layout(job, layouts);
    std::printf("%zu layouts, with choice %.3f s\n", layouts.size(), std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
}

}  // namespace
}  // namespace weft::test
