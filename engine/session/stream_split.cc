#include "engine/session/stream_split.h"

#include <algorithm>

#include "engine/memory/memory_advice.h"

namespace weft {
namespace {

bool fits(const PlannedStream& stream, const StreamSettings& how) {
  return std::ranges::all_of(stream.engine(how)->memory(stream.caption), &MemoryPlan::fits);
}

}  // namespace

void check_memory(const std::vector<MemoryPlan>& devices) {
  const auto plan = std::ranges::find_if_not(devices, &MemoryPlan::fits);
  if (plan == devices.end()) return;
  const std::string which = devices.size() == 1
                                ? ""
                                : "on device " + std::to_string(plan - devices.begin() + 1) +
                                      " of " + std::to_string(devices.size()) + ", ";
  throw Error(ErrorKind::kMemory, which + shortage(*plan) +
                                      "a smaller --size, --kv-dtype int8, --weights int8 (fp8 on "
                                      "a GPU), or --layout layers=2 over two devices");
}

BestSplit best_split(const PlannedStream& stream, const StreamMeasurement& one,
                     const TimeStream& time) {
  const StreamPlanConfig config = stream.engine(stream.settings)->plan();
  StreamTimes times = one.times;
  StreamSettings shared = stream.settings;
  shared.layout[Axis::kUlysses] = static_cast<int>(std::min<int64_t>(stream.ranks, config.heads));
  if (shared.layout[Axis::kUlysses] > 1 && fits(stream, shared))
    times.exchange_s = exchange_of(time(shared), shared, times);
  const auto with = [&](const Layout& layout, bool decodes_apart) {
    StreamSettings how = stream.settings;
    how.layout = layout;
    how.decodes_apart = decodes_apart;
    return how;
  };
  const StreamForecast best =
      best_stream(config, times, stream.ranks, [&](const StreamPlanConfig& split) {
        return fits(stream, with(split.layout, split.decodes_apart));
      });
  return {with(best.layout, best.decodes_apart), best};
}

StreamSplit choose_split(Pace pace, const PlannedStream& stream) {
  const bool live = pace == Pace::kLive, is_open = stream.is_open();
  StreamSplit out{.engine = stream.engine(stream.settings), .forecast = {}, .memory = {}};
  out.memory = out.engine->memory(stream.caption);
  check_memory(out.memory);
  if (pace == Pace::kAny && !is_open) return out;
  const auto measure = [&](StreamEngine& engine) {
    return measure_stream(engine, stream.caption, stream.fps());
  };
  const StreamMeasurement measured = measure(*out.engine);
  const StreamPlanConfig one = out.engine->plan();
  out.forecast = measured.stream;
  if (is_open) {
    out.engine.reset();  // the split that is measured next, or chosen, needs the memory
    const BestSplit best = best_split(
        stream, measured, [&](const StreamSettings& how) { return measure(*stream.engine(how)); });
    out.forecast = best.forecast;
    out.engine = stream.engine(best.settings);
    out.memory = out.engine->memory(stream.caption);
    out.engine->warm_up(stream.caption);
  }
  if (!live || keeps_up(*out.forecast, measured.times)) return out;
  const StreamSettings& settings = stream.settings;
  if (is_open || stream.ranks == 1)
    throw Error(ErrorKind::kUsage,
                stream_refusal(one, measured.times, stream.ranks, {settings.width, settings.height},
                               std::ranges::max(stream_size_multiples(stream.model->directory))));
  throw Error(ErrorKind::kUsage, "the stream cannot keep up: " + to_string(*out.forecast) +
                                     "; legal: fewer --steps, a smaller --size, or --layout auto");
}

}  // namespace weft
