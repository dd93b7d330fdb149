#include "engine/session/stream_measure.h"

#include <algorithm>
#include <chrono>
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

}  // namespace

StreamMeasurement measure_stream(StreamEngine& engine, const std::string& caption, double fps,
                                 int blocks) {
  const StreamSettings& settings = engine.settings();
  const StreamPlanConfig plan = engine.plan();
  engine.warm_up(caption);
  const int full = static_cast<int>(settings.window_frames / settings.block_frames);
  const int all = std::max(full, plan.under_way()) + blocks;
  std::vector<double> done_s, decode_s;  // of every block
  int64_t pictures = 0;                  // of the last one
  const double begun = now();
  engine.run(
      caption,
      [&](int64_t number) {
        StreamSignal next = engine.silence(settings.block_frames);
        next.last = number + 1 == all || (number > 0 && now() - begun > kBudget_s);
        return next;
      },
      [&](StreamPictures&& drawn) {
        done_s.push_back(now() - begun);
        decode_s.push_back(drawn.decode_s);
        pictures = std::ssize(drawn.pictures);
      });
  std::vector<double> gaps, decoding;
  const auto last = static_cast<int>(done_s.size());
  for (int block = std::max(1, last - blocks); block < last; ++block) {
    gaps.push_back(done_s[block] - done_s[block - 1]);
    decoding.push_back(decode_s[block]);
  }
  StreamMeasurement out;
  out.times = {.decode_s = median(decoding), .pictures = static_cast<double>(pictures), .fps = fps};
  out.stream = {.layout = settings.layout,
                .decodes_apart = settings.decodes_apart,
                .period_s = median(gaps),
                .first_frame_s = done_s.front()};
  out.stream.fps = out.times.pictures / out.stream.period_s;
  if (plan.ranks() == 1)
    out.times.forward_s = (out.stream.period_s - out.times.decode_s) / settings.steps;
  return out;
}

double measure_exchange(StreamEngine& engine, const std::string& caption,
                        const StreamTimes& times) {
  const StreamSettings& settings = engine.settings();
  const StreamMeasurement split = measure_stream(engine, caption, times.fps);
  const double forward_s = (split.stream.period_s - split.times.decode_s) / settings.steps;
  return std::max(0.0, forward_s - times.forward_s / settings.layout[Axis::kUlysses]);
}

}  // namespace weft
