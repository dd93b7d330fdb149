#include "engine/planning/stream_forecast.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/check.h"

namespace weft {
namespace {

std::string text(const char* format, double value) {
  char out[32];
  std::snprintf(out, sizeof out, format, value);
  return out;
}

}  // namespace

StreamForecast stream_forecast(const StreamPlanConfig& given, const StreamTimes& times) {
  StreamPlanConfig config = given;
  const int settled = config.settled_segment(), spread = 2 * config.layout[Axis::kLayers] * 12;
  config.segments = settled + spread + config.credits + 2;
  const std::vector<Plan> plans = plan_stream(config);
  const auto ends = time_plans(plans, {}, times.hop, [&](const Step& step, int) {
    if (step.kind == Step::Kind::kDecode) return times.decode_s;
    if (step.kind != Step::Kind::kCompute) return 0.0;
    const double share =
        static_cast<double>(step.tokens.size()) / static_cast<double>(config.tokens().size());
    const int ulysses = config.layout[Axis::kUlysses];
    const double own =
        times.forward_s * share * (step.blocks.end - step.blocks.begin) / (config.layers * ulysses);
    return ulysses > 1 ? own + times.exchange_s.value_or(0) : own;
  });
  std::vector<double> decoded(config.segments);
  const Plan& last = plans[config.decoder()];
  CHECK(ends[last.rank].size() == last.steps.size(), "the stream waits for ever");
  for (size_t i = 0; i < last.steps.size(); ++i)
    if (last.steps[i].kind == Step::Kind::kDecode)
      decoded[last.steps[i].pass.segment] = ends[last.rank][i].end_s;
  StreamForecast out{.layout = config.layout, .decodes_apart = config.decodes_apart};
  out.period_s = (decoded[settled + spread] - decoded[settled]) / spread;
  out.fps = times.pictures / out.period_s;
  out.first_frame_s = decoded[0];
  return out;
}

StreamForecast best_stream(const StreamPlanConfig& config, const StreamTimes& times, int devices,
                           const std::function<bool(const StreamPlanConfig&)>& fits) {
  std::optional<StreamForecast> best;
  // Times that differ by less than measurements do are the same.
  const auto rounded = [](double seconds) { return std::round(seconds * 1e4); };
  const auto rank = [&](const StreamForecast& of) {
    const bool ok = keeps_up(of, times);
    return std::tuple(!ok, rounded(ok ? of.first_frame_s : of.period_s), of.devices(),
                      rounded(of.period_s), of.layout[Axis::kLayers]);
  };
  const int most_ulysses =
      times.exchange_s ? static_cast<int>(std::min<int64_t>(config.heads, devices)) : 1;
  for (int steps = 1; steps <= std::min(config.steps, devices); ++steps)
    for (int layers = 1; layers <= std::min(config.layers, devices / steps); ++layers)
      for (int ulysses = 1; ulysses <= (layers == 1 ? most_ulysses : 1); ++ulysses)
        for (const bool apart : {false, true}) {
          StreamPlanConfig split = config;
          split.layout = {};
          split.layout[Axis::kStep] = steps;
          split.layout[Axis::kLayers] = layers;
          split.layout[Axis::kUlysses] = ulysses;
          split.decodes_apart = apart;
          if (split.ranks() > devices || (fits && !fits(split))) continue;
          const StreamForecast forecast = stream_forecast(split, times);
          if (!best || rank(forecast) < rank(*best)) best = forecast;
        }
  if (!best)
    throw Error(ErrorKind::kMemory, "no split of the stream fits into the memory of " +
                                        std::to_string(devices) +
                                        " devices; legal are smaller sizes, or --resident-layers");
  return *best;
}

std::string stream_refusal(const StreamPlanConfig& config, const StreamTimes& times, int devices,
                           const std::array<int64_t, 2>& size, int64_t multiple,
                           const std::function<bool(const StreamPlanConfig&)>& fits) {
  const StreamForecast best = best_stream(config, times, devices, fits);
  if (keeps_up(best, times)) return "";
  std::string offers;
  StreamPlanConfig fewer = config;
  while (offers.empty() && --fewer.steps > 0)
    if (keeps_up(best_stream(fewer, times, devices, fits), times))
      offers = "--steps " + std::to_string(fewer.steps);
  for (int64_t width = size[0] - multiple; width >= multiple; width -= multiple) {
    const int64_t height = std::max(multiple, width * size[1] / size[0] / multiple * multiple);
    StreamTimes smaller = times;
    const double area =
        static_cast<double>(width * height) / static_cast<double>(size[0] * size[1]);
    smaller.forward_s *= area;
    smaller.decode_s *= area;
    if (!keeps_up(best_stream(config, smaller, devices, fits), smaller)) continue;
    offers += (offers.empty() ? "" : ", or ") + std::string("--size ") + std::to_string(width) +
              "x" + std::to_string(height);
    break;
  }
  return "the stream cannot keep up: " + to_string(best) + ", but a block is shown for " +
         text("%.3g", times.lasts_s()) + " s; " +
         (offers.empty() ? "no fewer steps or smaller sizes would help on " +
                               std::to_string(devices) + " devices"
                         : "it would with " + offers);
}

std::string to_string(const StreamForecast& forecast) {
  return to_string(forecast.layout) + (forecast.decodes_apart ? " and a decoder: " : ": ") +
         text("%.3g", forecast.fps) + " pictures/s, a block every " +
         text("%.3g", forecast.period_s) + " s, the first after " +
         text("%.3g", forecast.first_frame_s) + " s";
}

}  // namespace weft
