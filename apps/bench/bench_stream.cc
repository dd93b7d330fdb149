// weft bench stream: how fast and how evenly a stream comes. Streams --seconds of sound with
// --model, or the pocket avatar: as fast as it can, or paced with --live.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/live/face/session_run.h"
#include "apps/model_folder.h"
#include "apps/stream/stream_flags.h"
#include "apps/stream/stream_report.h"
#include "io/sound/audio_features.h"

namespace weft {
namespace {

constexpr double kSeconds = 60;

std::shared_ptr<const OpenModel> model_of(const Flags& flags) {
  return flags.given("model") ? stream_model(flags)
                              : std::make_shared<const OpenModel>(find_model("pocket_avatar"));
}

// The lateness of pictures, against a clock that starts with the first one.
class Punctuality {
 public:
  explicit Punctuality(double fps) : fps_(fps) {}
  void add(int64_t index) {
    const double now = wall_seconds();
    if (index == 0) begun_ = now;
    const double late = now - begun_ - static_cast<double>(index) / fps_;
    sum_ += late;
    squares_ += late * late;
    most_ = std::max(most_, late);
    ++count_;
  }
  double mean() const { return sum_ / count_; }
  double deviation() const { return std::sqrt(std::max(0.0, squares_ / count_ - mean() * mean())); }
  double most() const { return most_; }

 private:
  const double fps_;
  double begun_ = 0, sum_ = 0, squares_ = 0, most_ = 0;
  double count_ = 0;
};

// A tone that swells and fades four times a second, as syllables do.
Sound tone(double seconds) {
  constexpr double kPitch = 150, kSyllables = 4;  // Hz
  constexpr int kRate = SoundBands::kRate;
  Sound sound{kRate, std::vector<float>(static_cast<size_t>(std::llround(seconds * kRate)))};
  for (size_t i = 0; i < sound.samples.size(); ++i) {
    const double turns = 2 * std::numbers::pi * static_cast<double>(i) / kRate;
    const double loudness = 0.25 - 0.25 * std::cos(kSyllables * turns);
    sound.samples[i] = static_cast<float>(loudness * std::sin(kPitch * turns));
  }
  return sound;
}

// The figures of one stream.
struct StreamFigures {
  StreamReport report;
  uint64_t memory = 0, growth = 0;  // bytes: after two windows, and how much more later
};

void print_figures(const Flags& flags, const StreamEngine& engine, const StreamFigures& figures,
                   const Punctuality* punctuality) {
  const auto& [report, memory, growth] = figures;
  if (flags.on("json")) {
    nlohmann::json object = to_json(report);
    object["bench"] = "stream";
    object["isa"] = cpu_isa();
    object["threads"] = engine.settings().threads;
    object["dtype"] = to_string(engine.settings().dtype);
    object["live"] = punctuality != nullptr;
    if (punctuality) {
      object["mean_lateness_seconds"] = punctuality->mean();
      object["jitter_seconds"] = punctuality->deviation();
      object["most_late_seconds"] = punctuality->most();
    }
    if (memory > 0) object["memory_bytes"] = memory;
    if (memory > 0) object["memory_growth_bytes"] = growth;
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  std::printf("%s\n", to_string(report).c_str());
  std::printf("sound and pictures at most %.1f ms apart\n", report.counts.max_skew * 1e3);
  if (punctuality)
    std::printf("handed out %.2f ms late in the mean, %.2f ms jitter, %.2f ms at most\n",
                punctuality->mean() * 1e3, punctuality->deviation() * 1e3,
                punctuality->most() * 1e3);
  if (memory > 0)
    std::printf("memory %.1f MiB after two windows, then %.2f MiB more\n",
                static_cast<double>(memory) * 0x1p-20, static_cast<double>(growth) * 0x1p-20);
}

// One stream.
void measure_stream_once(const Flags& flags, StreamEngine& engine, const std::string& caption) {
  const double seconds = flags.real("seconds").value_or(kSeconds);
  const SessionConfig config = session_config(flags, engine);
  const auto fps = static_cast<double>(config.fps.num) / static_cast<double>(config.fps.den);
  engine.warm_up(caption);
  const std::unique_ptr<SoundSource> sound = sound_in_memory(tone(seconds));
  Session session(config);
  StreamWatch watch(config.fps);
  Punctuality punctuality(fps);
  StreamFigures figures;
  // A stream has made everything that it keeps once two windows of pictures are done.
  const int64_t settled = 2 * engine.settings().window_frames * config.pictures;
  play_sound(engine, caption, session, *sound, [&](SessionSlot&& slot) {
    watch.add(slot);
    punctuality.add(slot.index);
    if (slot.index < settled || slot.index % 96 != 0) return;
    const uint64_t bytes = process_bytes("RssAnon:");
    if (figures.memory == 0) figures.memory = bytes;
    figures.growth = std::max(figures.growth, bytes - std::min(bytes, figures.memory));
  });
  figures.report = watch.report(session);
  print_figures(flags, engine, figures, config.live ? &punctuality : nullptr);
  std::fflush(stdout);
}

}  // namespace

int bench_stream(const Flags& flags, DType dtype, int repeat) {
  const std::shared_ptr<const OpenModel> model = model_of(flags);
  Ranks ranks = stream_threads(flags);
  StreamSettings settings = stream_settings(flags, ranks, *model);
  take_devices(flags, ranks, settings);
  settings.dtype = dtype;
  settings.seed = 0;  // every run draws the same noise
  StreamEngine engine(model, settings);
  const std::string caption = caption_of(flags, *model->directory.defaults.stream);
  for (int i = 0; i < repeat; ++i) measure_stream_once(flags, engine, caption);
  return 0;
}

}  // namespace weft
