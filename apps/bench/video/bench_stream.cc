#include "apps/bench/video/bench_stream.h"

#include <cmath>
#include <cstdio>
#include <thread>

#include "apps/bench/bench_limits.h"
#include "apps/bench/pocket/face_reader.h"
#include "apps/bench/pocket/made_voice.h"
#include "apps/bench/video/stream_plot.h"
#include "apps/model_folder.h"
#include "apps/stream/stream_flags.h"
#include "apps/stream/stream_report.h"
#include "engine/session/session_run.h"
#include "engine/session/stream_measure.h"
#include "io/atomic_file.h"
#include "io/json.h"

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

// The mouth beside the sound, where the pictures are faces that the reader knows.
class Lips {
 public:
  // So many pictures at most. They take their memory now, and so are no growth of the stream.
  explicit Lips(size_t pictures) : opening_(pictures), loudness_(pictures), speaks_(pictures) {}
  void add(const SessionSlot& slot) {
    if (slot.picture.width != pocket::kFaceSize || slot.picture.height != pocket::kFaceSize) return;
    const auto at = static_cast<size_t>(slot.index);
    if (at >= opening_.size()) return;
    opening_[at] = pocket::read_face(slot.picture).opening;
    loudness_[at] = pocket::loudness_of(slot.sound).front();
    speaks_[at] = slot.state == SessionState::kSpeaking;
    count_ = at + 1;
  }
  std::optional<pocket::LipSync> sync() const {
    if (count_ == 0) return std::nullopt;
    return pocket::lip_sync(std::span(opening_).first(count_), std::span(loudness_).first(count_),
                            {speaks_.begin(), speaks_.begin() + static_cast<int64_t>(count_)});
  }

 private:
  std::vector<double> opening_, loudness_;
  std::vector<bool> speaks_;
  size_t count_ = 0;
};

// The figures of one stream.
struct Figures {
  StreamReport report;
  std::optional<pocket::LipSync> sync;
  uint64_t memory = 0, growth = 0;  // bytes: behind two windows, and how much more later
};

void print_figures(const Flags& flags, const StreamEngine& engine, const Figures& figures,
                   const Punctuality* punctuality) {
  const auto& [report, sync, memory, growth] = figures;
  if (flags.on("json")) {
    const int threads = engine.settings().threads;
    Json object = to_json(report);
    object["bench"] = "stream";
    object["isa"] = cpu_isa();
    object["threads"] = threads > 0 ? threads : int(std::thread::hardware_concurrency());
    object["dtype"] = to_string(engine.settings().dtype);
    object["live"] = punctuality != nullptr;
    if (punctuality) {
      object["mean_lateness_seconds"] = punctuality->mean();
      object["jitter_seconds"] = punctuality->deviation();
      object["most_late_seconds"] = punctuality->most();
    }
    if (memory > 0) object["memory_bytes"] = memory;
    if (memory > 0) object["memory_growth_bytes"] = growth;
    if (sync) object["lip_correlation"] = sync->correlation;
    if (sync) object["lip_lag_frames"] = sync->lag;
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
  if (sync)
    std::printf("mouth and loudness correlate by %.3f, most at a lag of %d pictures (%.3f)\n",
                sync->correlation, sync->lag, sync->best);
}

// One stream of a voice that the seed decides.
void measure(const Flags& flags, StreamEngine& engine, const std::string& caption, int seed) {
  const double seconds = flags.real("seconds").value_or(kSeconds);
  const SessionConfig config = session_config(flags, engine);
  const auto fps = static_cast<double>(config.fps.num) / static_cast<double>(config.fps.den);
  engine.warm_up(caption);
  const std::unique_ptr<SoundSource> sound =
      sound_in_memory(pocket::made_voice(seconds, static_cast<uint64_t>(seed)));
  Session session(config);
  StreamWatch watch(config.fps);
  Punctuality punctuality(fps);
  Lips lips(static_cast<size_t>(seconds * fps) + 1);
  Figures figures;
  // A stream has made everything that it keeps once two windows of pictures are done.
  const int64_t settled = 2 * engine.settings().window_frames * config.pictures;
  play_sound(engine, caption, session, *sound, [&](SessionSlot&& slot) {
    watch.add(slot);
    punctuality.add(slot.index);
    lips.add(slot);
    if (slot.index < settled || slot.index % 96 != 0) return;
    const uint64_t bytes = process_bytes("RssAnon:");
    if (figures.memory == 0) figures.memory = bytes;
    figures.growth = std::max(figures.growth, bytes - std::min(bytes, figures.memory));
  });
  figures.report = watch.report(session);
  figures.sync = lips.sync();
  print_figures(flags, engine, figures, config.live ? &punctuality : nullptr);
  std::fflush(stdout);
}

// A stream that is idle, listens, speaks and is idle again, as a picture.
void draw_strip(const Flags& flags, StreamEngine& engine, const std::string& caption) {
  const std::string path = flags.text("svg");
  const SessionConfig config = session_config(flags, engine);
  Session session(config);
  std::vector<SessionSlot> slots;
  {
    std::jthread runs([&] { run_session(engine, caption, session); });
    std::jthread speaks([&] {
      try {
        session.rest(SessionState::kIdle, 45);
        session.rest(SessionState::kListening, 48);
        session.push_sound(pocket::made_voice(5.5, 1).samples, 0);
        session.end_turn();
        session.rest(SessionState::kIdle, 36);
        session.close();
      } catch (const Error&) {  // of the engine: next() throws it, too
      }
    });
    while (std::optional<SessionSlot> slot = session.next()) slots.push_back(std::move(*slot));
  }
  write_file(path, stream_svg(slots, static_cast<double>(config.fps.num) / config.fps.den, caption),
             Overwrite::kReplace);
  std::printf("%s\n", path.c_str());
}

// A row of the table of forecasts. `published` are pictures per second and the seconds until the
// first one, 0 where there are none.
void print_forecast(const Flags& flags, const std::string& device, const StreamForecast& forecast,
                    int steps, const std::pair<double, double>& published) {
  if (flags.on("json")) {
    Json object = to_json(forecast);
    object["bench"] = "stream";
    object["device"] = device;
    object["steps"] = steps;
    if (published.first > 0) object["published_fps"] = published.first;
    if (published.second > 0) object["published_first_frame_seconds"] = published.second;
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  const auto shown = [](double value) {
    char text[16];
    std::snprintf(text, sizeof text, "%.4g", value);
    return value > 0 ? std::string(text) : std::string("-");
  };
  std::printf("%-14s %5d %7d   %-22s %10.4g %10.4g %10.4g %10s %10s\n", device.c_str(), steps,
              forecast.devices(),
              (to_string(forecast.layout) + (forecast.decodes_apart ? " + decoder" : "")).c_str(),
              forecast.fps, forecast.period_s, forecast.first_frame_s,
              shown(published.first).c_str(), shown(published.second).c_str());
}

// Live Avatar's t, v and pictures, with which its tables 3 and 5 are one formula.
constexpr StreamTimes kPaper{.forward_s = 0.2655, .decode_s = 0.150, .hop = {}, .pictures = 12};

void simulate(const Flags& flags, StreamEngine& engine, const std::string& caption) {
  const double fps = engine.model().directory.defaults.stream->fps;
  const StreamTimes here = measure_stream(engine, caption, fps).times;
  const StreamPlanConfig plan = engine.plan();
  if (!flags.on("json")) {
    std::printf(
        "here: a forward of %.4f s, decoding of %.4f s a block; Live Avatar: %.4f and "
        "%.4f s\n",
        here.forward_s, here.decode_s, kPaper.forward_s, kPaper.decode_s);
    std::printf("%-14s %5s %7s   %-22s %10s %10s %10s %10s %10s\n", "device", "steps", "devices",
                "layout", "pictures/s", "period s", "first s", "published", "first s");
  }
  for (const auto& [device, times] :
       {std::pair<std::string, StreamTimes>{"like this one", here}, {"Live Avatar's", kPaper}})
    for (const auto& [steps, groups, apart] : {std::tuple{4, 1, false},
                                               {4, 2, false},
                                               {4, 4, false},
                                               {4, 4, true},
                                               {3, 3, true},
                                               {2, 2, true}}) {
      StreamPlanConfig config = plan;
      config.steps = steps;
      config.layout = Layout();
      config.layout[Axis::kStep] = groups;
      config.decodes_apart = apart;
      std::pair<double, double> published{};
      if (device == "Live Avatar's" && apart)
        published = {45.2, steps == 4 ? 1.21 : steps == 3 ? 0.95 : 0.68};
      print_forecast(flags, device, stream_forecast(config, times), steps, published);
    }
}

}  // namespace

int bench_stream(const Flags& flags, DType dtype, int repeat) {
  const std::shared_ptr<const OpenModel> model = model_of(flags);
  Ranks ranks = stream_ranks(flags);
  StreamSettings settings = stream_settings(flags, ranks, *model);
  settings.dtype = dtype;
  settings.seed = 0;  // every run draws the same noise
  StreamEngine engine(model, settings);
  const std::string caption = caption_of(flags, *model->directory.defaults.stream);
  if (flags.on("simulate")) {
    simulate(flags, engine, caption);
    return 0;
  }
  if (!flags.text("svg").empty()) {
    draw_strip(flags, engine, caption);
    return 0;
  }
  for (int i = 0; i < repeat; ++i) measure(flags, engine, caption, i);
  return 0;
}

}  // namespace weft
