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

// Two blocks at least, and no further ones once they have taken so long.
constexpr double kBudget_s = 5;

// The blocks of a stream until the window is full and the split is busy.
int blocks_until_busy(const StreamEngine& engine) {
  const StreamSettings& settings = engine.settings();
  const int full = static_cast<int>(settings.window_frames / settings.block_frames);
  return std::max(full, engine.plan().under_way());
}

// From the last of the blocks, at most so many.
StreamMeasurement measurement_of(const StreamEngine& engine, std::span<const StreamBlockTime> done,
                                 double fps, int blocks) {
  const StreamSettings& settings = engine.settings();
  std::vector<double> gaps, decoding;
  const auto last = static_cast<int>(done.size());
  for (int block = std::max(1, last - blocks); block < last; ++block) {
    gaps.push_back(done[block].done_s - done[block - 1].done_s);
    decoding.push_back(done[block].decode_s);
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
                                 int blocks) {
  engine.warm_up(caption);
  const int all = blocks_until_busy(engine) + blocks;
  std::vector<StreamBlockTime> done;
  const double begun = now();
  engine.run(
      caption,
      [&](int64_t number) {
        StreamSignal next = engine.silence(engine.settings().block_frames);
        next.last = number + 1 == all || (number > 0 && now() - begun > kBudget_s);
        return next;
      },
      [&](StreamPictures&& drawn) {
        done.push_back({.done_s = now() - begun,
                        .decode_s = drawn.decode_s,
                        .pictures = std::ssize(drawn.pictures)});
      });
  return measurement_of(engine, done, fps, blocks);
}

StreamMeasurement simulate_stream(StreamEngine& engine, const std::string& caption, double fps,
                                  const Machine& machine, int blocks) {
  StreamMeasurement out = measurement_of(
      engine, engine.simulated(caption, machine, blocks_until_busy(engine) + blocks), fps, blocks);
  out.times.hop = machine.link;
  return out;
}

double exchange_of(const StreamMeasurement& split, const StreamSettings& settings,
                   const StreamTimes& times) {
  const double forward_s = (split.stream.period_s - split.times.decode_s) / settings.steps;
  return std::max(0.0, forward_s - times.forward_s / settings.layout[Axis::kUlysses]);
}

}  // namespace weft
