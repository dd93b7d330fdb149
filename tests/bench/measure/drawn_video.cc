#include "tests/bench/measure/drawn_video.h"

#include <algorithm>
#include <numeric>

#include "apps/device.h"
#include "engine/job/job_spec.h"

namespace weft {
namespace {

class FrameKeeper final : public FrameSink {
 public:
  explicit FrameKeeper(std::vector<Frame>& frames) : frames_(frames) {}
  void push(const Frame& frame) override { frames_.push_back(frame); }
  std::string finish() override { return ""; }

 private:
  std::vector<Frame>& frames_;
};

double seconds_of(const RunResult& result, const std::string& stage) {
  double seconds = 0;
  for (const StageSeconds& one : result.stages)
    if (one.stage == stage) seconds += one.seconds;
  return seconds;
}

}  // namespace

Request sizes_of(const Flags& flags) {
  Request request;
  request.frames = flags.integer("num-frames").value_or(0);
  request.steps = static_cast<int>(flags.integer("steps").value_or(0));
  if (!flags.given("size")) return request;
  const auto size = parse_size(flags.text("size"));
  if (!size)
    throw Error(ErrorKind::kUsage,
                flags.label("size") + " is '" + flags.text("size") + "', legal: WxH, as 832x480");
  std::tie(request.width, request.height) = *size;
  return request;
}

DrawnVideo draw_video(const Flags& flags, const std::shared_ptr<const OpenModel>& model,
                      const GeneratorOptions& options, const Layout& layout, const Request& request,
                      const Link* link) {
  DrawnVideo video;
  const int count = layout.ranks();
  const Ranks ranks{.count = count, .on_this_host = count};
  std::vector<int64_t> sent(count);
  const auto draw = [&](Communicator& world) {
    GeneratorOptions own = options;
    own.device = device_of(flags, ranks, world.rank());
    own.ranks_per_device = own.ranks_per_host = count;
    Generator generator(model, own, RankPlacement::of(world, layout));
    FrameKeeper keeper(video.frames);
    const RunResult result = generator.run(request, world.rank() == 0 ? &keeper : nullptr);
    sent[world.rank()] = world.counters().total_sent().bytes;
    if (world.rank() != 0) return;
    const double loading = seconds_of(result, "load");
    video.hash = result.framehash;
    video.seconds = result.seconds - loading;
    video.first_frame_s = result.first_frame_seconds - loading;
    video.denoise_s = seconds_of(result, "denoise");
    video.peak_bytes = result.memory_high_water;
    video.skipped_steps = std::ranges::count(result.cached, true, &CachedStep::skipped);
  };
  on_ranks(ranks, draw, link);
  video.sent_bytes = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  return video;
}

}  // namespace weft
