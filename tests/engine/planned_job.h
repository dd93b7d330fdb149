#pragma once
// Jobs whose forecasts are compared, on a device and over links with given rates.
#include <string>
#include <vector>

#include "engine/planning/forecast.h"
#include "tests/engine/small_job.h"

namespace weft::test {

inline const Link kFast{.latency_s = 1e-6, .bytes_per_s = 1e11},
    kSlow{.latency_s = 1e-3, .bytes_per_s = 1e8};

inline DeviceModel forecast_device() {
  DeviceModel model;
  model.flop_per_s.fill(100e9);
  model.bytes_per_s.fill(10e9);
  model.copy_bytes_per_s = 5e9;
  model.message_s = 30e-6;
  return model;
}

inline PlannedJob planned(const std::string& model, const Link& link, int frames = 0,
                          const std::string& method = "auto", int steps = 7) {
  PlannedJob job{.model = std::make_shared<const OpenModel>(model),
                 .options = options_of(DType::kF32),
                 .request = {},
                 .machine = {.device = forecast_device(), .link = link}};
  job.options.ops = &metered_ops();
  job.options.memory_limit = UINT64_MAX;
  job.request.prompt = "a big red ball";
  job.request.frames = frames;
  job.request.steps = steps;
  job.request.method = parse_method(method, "method");
  job.request = Generator(job.model, job.options).resolve(job.request);
  return job;
}

inline std::vector<Layout> legal(const PlannedJob& job, int ranks) {
  return legal_layouts(ranks, Generator(job.model, job.options).layout_limits(job.request));
}

}  // namespace weft::test
