#pragma once
// Forecasts of streams from three measured times. The plan of a split is timed
// (parallel/schedule/plan_timing.h), so that waits and overlap are those of the run. With a rank
// for each step and one that decodes, the period is max(t, v, c) and the first pictures come after
// T (t + c) + v (Live Avatar, 2025, arXiv 2512.04677).
#include <functional>
#include <optional>
#include <string>

#include "parallel/schedule/plan_timing.h"
#include "parallel/schedule/stream_plan.h"

namespace weft {

// Measured for the segments of a stream.
struct StreamTimes {
  // t: one forward of a segment through all transformer blocks, on one device.
  double forward_s = 0;
  double decode_s = 0;  // v: decoding a segment
  Link hop{};           // c: how messages go from a device to another
  // Seconds that a split of tokens and heads (ulysses) adds to its share of a forward. Unknown:
  // such splits are not considered.
  std::optional<double> exchange_s{};
  double pictures = 0;  // of a segment
  double fps = 25;      // at which they are shown

  double lasts_s() const { return pictures / fps; }  // a segment
};

struct StreamForecast {
  Layout layout{};
  bool decodes_apart = false;
  double period_s = 0;  // between segments in the long run
  double fps = 0;       // pictures per second
  // Until segment 0 is decoded, from a loaded model and an encoded caption.
  double first_frame_s = 0;
  int devices() const { return layout.ranks() + decodes_apart; }
};

// Forecasts a stream of `config`, whose segments are full and whose number of them is not read.
StreamForecast stream_forecast(const StreamPlanConfig& config, const StreamTimes& times);

// Returns the forecast of the best split on so many devices: one rank, steps, layers, both, tokens
// and heads, with and without a rank that only decodes. Splits that keep up go before those that do
// not. Among the former the first pictures decide, and then the number of devices; among the latter
// the period. `fits` says whether a split's memory does; empty: all do.
StreamForecast best_stream(const StreamPlanConfig& config, const StreamTimes& times, int devices,
                           const std::function<bool(const StreamPlanConfig&)>& fits = {});

inline bool keeps_up(const StreamForecast& forecast, const StreamTimes& times) {
  return forecast.period_s <= times.lasts_s();
}

// One line on a stream that the devices cannot make as fast as it is shown, with the numbers of
// steps and the sizes that they can; "" where they can. Both times are taken to fall in proportion
// to the area, which attention makes fall faster. `size` is width and height; sizes are multiples
// of `multiple`.
std::string stream_refusal(const StreamPlanConfig& config, const StreamTimes& times, int devices,
                           const std::array<int64_t, 2>& size, int64_t multiple,
                           const std::function<bool(const StreamPlanConfig&)>& fits = {});

// "step=4 and a decoder: 45.2 pictures/s, a block every 0.266 s, the first after 1.21 s".
std::string to_string(const StreamForecast& forecast);

}  // namespace weft
