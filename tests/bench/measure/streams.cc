#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/bench/bench_limits.h"
#include "apps/live/face/session_run.h"
#include "apps/model_folder.h"
#include "apps/stream/stream_flags.h"
#include "apps/stream/stream_report.h"
#include "engine/session/stream_measure.h"
#include "io/media/image.h"
#include "tests/bench/measure/measure.h"
#include "tests/bench/pocket/face_reader.h"
#include "tests/bench/pocket/made_voice.h"

namespace weft {
namespace {

// The model of --model, or the pocket avatar, with what streams need of it.
struct Avatar {
  Avatar(const Flags& flags, DType dtype)
      : model(flags.given("model")
                  ? stream_model(flags)
                  : std::make_shared<const OpenModel>(find_model("pocket_avatar"))),
        caption(caption_of(flags, *model->directory.defaults.stream)),
        engine(model, settings_of(flags, dtype, *model)) {}

  std::shared_ptr<const OpenModel> model;
  std::string caption;
  StreamEngine engine;

 private:
  static StreamSettings settings_of(const Flags& flags, DType dtype, const OpenModel& model) {
    Ranks ranks = stream_threads(flags);
    StreamSettings settings = stream_settings(flags, ranks, model);
    take_devices(flags, ranks, settings);
    settings.dtype = dtype;
    settings.seed = 0;  // every run draws the same noise
    return settings;
  }
};

// The mouth beside the sound, where the pictures are faces that the reader knows.
class Lips {
 public:
  void add(const SessionSlot& slot) {
    if (slot.picture.width != pocket::kFaceSize || slot.picture.height != pocket::kFaceSize) return;
    opening_.push_back(pocket::read_face(slot.picture).opening);
    loudness_.push_back(pocket::loudness_of(slot.sound).front());
    speaks_.push_back(slot.state == SessionState::kSpeaking);
  }
  std::optional<pocket::LipSync> sync() const {
    if (opening_.empty()) return std::nullopt;
    return pocket::lip_sync(opening_, loudness_, speaks_);
  }

 private:
  std::vector<double> opening_, loudness_;
  std::vector<bool> speaks_;
};

// A stream that is idle, listens, speaks and is idle again.
std::vector<SessionSlot> stream_in_all_states(const Flags& flags, StreamEngine& engine,
                                              const std::string& caption) {
  Session session(session_config(flags, engine));
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
  return slots;
}

std::string hexadecimal(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text;
}

// A row of the table of forecasts. `published` are pictures per second and the seconds until the
// first one, 0 where there are none.
void print_forecast(const Flags& flags, const std::string& device, const StreamForecast& forecast,
                    int steps, const std::pair<double, double>& published) {
  if (flags.on("json")) {
    nlohmann::json object = to_json(forecast);
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

}  // namespace

int measure_lips(const Flags& flags, DType dtype, int repeat) {
  Avatar avatar(flags, dtype);
  const double seconds = flags.real("seconds").value_or(60);
  for (int seed = 0; seed < repeat; ++seed) {
    const std::unique_ptr<SoundSource> sound =
        sound_in_memory(pocket::made_voice(seconds, static_cast<uint64_t>(seed)));
    Session session(session_config(flags, avatar.engine));
    Lips lips;
    play_sound(avatar.engine, avatar.caption, session, *sound,
               [&](SessionSlot&& slot) { lips.add(slot); });
    const std::optional<pocket::LipSync> sync = lips.sync();
    if (!sync)
      throw Error(ErrorKind::kUsage,
                  flags.label("model") + " draws no faces that are read; legal: pocket_avatar");
    if (flags.on("json"))
      std::printf("%s\n", nlohmann::json{{"bench", "lips"},
                                         {"seed", seed},
                                         {"seconds", seconds},
                                         {"dtype", to_string(dtype)},
                                         {"lip_correlation", sync->correlation},
                                         {"lip_lag_frames", sync->lag}}
                              .dump()
                              .c_str());
    else
      std::printf("mouth and loudness correlate by %.3f, most at a lag of %d pictures (%.3f)\n",
                  sync->correlation, sync->lag, sync->best);
  }
  return 0;
}

int measure_face(const Flags& flags, DType dtype, int) {
  constexpr int64_t kFaces = 18;
  Avatar avatar(flags, dtype);
  const std::vector<SessionSlot> slots = stream_in_all_states(flags, avatar.engine, avatar.caption);
  nlohmann::json line{{"bench", "face"},
                      {"caption", avatar.caption},
                      {"fps", avatar.model->directory.defaults.stream->fps}};
  for (const SessionSlot& slot : slots) {
    line["states"].push_back(name_of(slot.state));
    line["loudness"].push_back(pocket::loudness_of(slot.sound).front());
    if (slot.picture.width == pocket::kFaceSize && slot.picture.height == pocket::kFaceSize)
      line["opening"].push_back(pocket::read_face(slot.picture).opening);
  }
  for (int64_t i = 0; i < kFaces; ++i)
    line["faces"].push_back(
        hexadecimal(encode_png(slots[(2 * i + 1) * std::ssize(slots) / (2 * kFaces)].picture, {})));
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

int measure_streams(const Flags& flags, DType dtype, int) {
  Avatar avatar(flags, dtype);
  const double fps = avatar.model->directory.defaults.stream->fps;
  const StreamTimes here = measure_stream(avatar.engine, avatar.caption, fps).times;
  const StreamPlanConfig plan = avatar.engine.plan();
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
  return 0;
}

}  // namespace weft
