#include "apps/stream/stream_split.h"

#include <algorithm>

#include "apps/stream/stream_memory.h"
#include "engine/session/stream_measure.h"

namespace weft {
StreamSplit choose_split(const Flags& flags, int ranks,
                         const std::shared_ptr<const OpenModel>& model,
                         const StreamSettings& settings, const std::string& caption) {
  const bool live = flags.on("live") || flags.given("listen"),
             is_open = ranks > settings.layout.ranks() + settings.decodes_apart;
  StreamSplit out{
      .engine = std::make_unique<StreamEngine>(model, settings), .forecast = {}, .memory = {}};
  const FreeMemory free(*out.engine);
  const auto needed = [&](const Layout& layout, bool decodes_apart) {
    StreamSettings other = settings;
    other.layout = layout;
    other.decodes_apart = decodes_apart;
    StreamEngine engine(model, other);
    return stream_memory(engine, caption);
  };
  const std::vector<StreamBytes> needs = stream_memory(*out.engine, caption);
  free.check(needs);
  out.memory = free.shown(needs);
  if (!live && !is_open && !flags.on("dry-run")) return out;
  const double fps = model->directory.defaults.stream->fps;
  StreamMeasurement measured = measure_stream(*out.engine, caption, fps);
  const StreamPlanConfig one = out.engine->plan();
  const auto ulysses = static_cast<int>(std::min<int64_t>(ranks, one.heads));
  if (is_open) out.engine.reset();  // the split that is measured next, or chosen, needs the memory
  StreamSettings shared = settings;
  shared.layout[Axis::kUlysses] = ulysses;
  if (is_open && ulysses > 1 && free.has(needed(shared.layout, shared.decodes_apart))) {
    StreamEngine engine(model, shared);
    measured.times.exchange_s = measure_exchange(engine, caption, measured.times);
  }
  StreamForecast forecast = measured.stream;
  if (is_open) {
    forecast = best_stream(one, measured.times, ranks, [&](const StreamPlanConfig& split) {
      return free.has(needed(split.layout, split.decodes_apart));
    });
    out.memory = free.shown(needed(forecast.layout, forecast.decodes_apart));
    StreamSettings best = settings;
    best.layout = forecast.layout;
    best.decodes_apart = forecast.decodes_apart;
    out.engine = std::make_unique<StreamEngine>(model, best);
    out.engine->warm_up(caption);
  }
  out.forecast = forecast;
  if (!live || keeps_up(forecast, measured.times)) return out;
  if (is_open || ranks == 1)
    throw Error(ErrorKind::kUsage,
                stream_refusal(one, measured.times, ranks, {settings.width, settings.height},
                               std::ranges::max(stream_size_multiples(model->directory))));
  throw Error(ErrorKind::kUsage, "the stream cannot keep up: " + to_string(forecast) +
                                     "; legal: fewer --steps, a smaller --size, or --layout auto");
}

}  // namespace weft
