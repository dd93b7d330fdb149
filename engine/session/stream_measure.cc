#include "engine/session/stream_measure.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

namespace weft {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The middle one.
double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

// Two segments at least, and no further ones once they have taken so long.
constexpr double kBudget_s = 5;

// The segments of a stream until the window is full and the split is busy.
int segments_until_busy(const StreamEngine& engine) {
  const StreamSettings& settings = engine.settings();
  const int full = static_cast<int>(settings.window_frames / settings.segment_frames);
  return std::max(full, engine.plan().under_way());
}

// From the last of the segments, at most so many.
StreamMeasurement measurement_of(const StreamEngine& engine,
                                 std::span<const StreamSegmentTime> done, double fps,
                                 int segments) {
  const StreamSettings& settings = engine.settings();
  std::vector<double> gaps, decoding;
  const auto last = static_cast<int>(done.size());
  for (int segment = std::max(1, last - segments); segment < last; ++segment) {
    gaps.push_back(done[segment].done_s - done[segment - 1].done_s);
    decoding.push_back(done[segment].decode_s);
  }
  StreamMeasurement out;
  out.times = {.decode_s = median(decoding),
               .pictures = static_cast<double>(done.back().pictures),
               .fps = fps};
  out.stream = {.layout = settings.layout,
                .decodes_apart = settings.decodes_apart,
                .period_s = median(gaps),
                .first_frame_s = done.front().done_s};
  out.stream.fps = out.times.pictures / out.stream.period_s;
  if (engine.ranks() == 1)
    out.times.forward_s = (out.stream.period_s - out.times.decode_s) / settings.steps;
  return out;
}

}  // namespace

StreamMeasurement measure_stream(StreamEngine& engine, const std::string& caption, double fps,
                                 int segments) {
  engine.warm_up(caption);
  const int all = segments_until_busy(engine) + segments;
  std::vector<StreamSegmentTime> done;
  const double begun = now();
  engine.run(
      caption,
      [&](int64_t number) {
        StreamSignal next = engine.silence(engine.settings().segment_frames);
        next.last = number + 1 == all || (number > 0 && now() - begun > kBudget_s);
        return next;
      },
      [&](StreamPictures&& drawn) {
        done.push_back({.done_s = now() - begun,
                        .decode_s = drawn.decode_s,
                        .pictures = std::ssize(drawn.pictures)});
      });
  return measurement_of(engine, done, fps, segments);
}

StreamMeasurement simulate_stream(StreamEngine& engine, const std::string& caption, double fps,
                                  const Machine& machine, int segments) {
  StreamMeasurement out = measurement_of(
      engine, engine.simulated(caption, machine, segments_until_busy(engine) + segments), fps,
      segments);
  out.times.hop = machine.link;
  return out;
}

double exchange_of(const StreamMeasurement& split, const StreamSettings& settings,
                   const StreamTimes& times) {
  const double forward_s = (split.stream.period_s - split.times.decode_s) / settings.steps;
  return std::max(0.0, forward_s - times.forward_s / settings.layout[Axis::kUlysses]);
}

}  // namespace weft
