// weft stream: a face that speaks a sound, as a file or live.
#include <unistd.h>

#include <cstdio>

#include "apps/commands.h"
#include "apps/generate/output_name.h"
#include "apps/generate/progress.h"
#include "apps/generate/request_flags.h"
#include "apps/generate/stop.h"
#include "apps/live/face/session_run.h"
#include "apps/live/listen.h"
#include "apps/serve/listen_flags.h"
#include "apps/stream/sound_input.h"
#include "apps/stream/stream_flags.h"
#include "apps/stream/stream_report.h"
#include "engine/session/stream_split.h"
#include "io/json.h"
#include "io/sound/movie.h"

namespace weft {
namespace {

// The movie goes to a file, or under --live to standard output.
struct Destination {
  std::string path;  // "": standard output
  VideoSettings video;
  Overwrite overwrite = Overwrite::kRefuse;

  std::unique_ptr<MovieSink> open() const {
    const MovieSettings settings{.video = video, .sample_rate = SoundBands::kRate};
    return path.empty() ? make_live_movie(STDOUT_FILENO, "standard output", settings)
                        : make_movie(path, settings, overwrite);
  }
};

Destination destination(const Flags& flags, const OpenModel& model, const StreamSettings& settings,
                        const std::string& caption) {
  const Overwrite overwrite = flags.on("overwrite") ? Overwrite::kReplace : Overwrite::kRefuse;
  Destination out{.path = "", .video = {}, .overwrite = overwrite};
  out.video.width = static_cast<int>(settings.width);
  out.video.height = static_cast<int>(settings.height);
  out.video.fps_num = static_cast<int>(model.directory.defaults.stream->fps);
  if (flags.on("live")) {
    if (flags.typed("output"))
      throw Error(ErrorKind::kUsage, flags.label("output") + " is '" + flags.text("output") +
                                         "', but --live writes to standard output; legal: --live "
                                         "> FILE, or --render FILE without --live");
    if (flags.on("json"))
      throw Error(ErrorKind::kUsage,
                  "--json prints on standard output, which --live needs for the movie; legal: one "
                  "of them");
    if (isatty(STDOUT_FILENO) && !flags.on("dry-run"))
      throw Error(ErrorKind::kUsage,
                  "--live writes a movie to standard output, which is a terminal; legal: a pipe or "
                  "a file, as weft stream --live ... | ffplay -");
    return out;
  }
  const OutputChoice choice{
      .output = flags.text("output"), .label = flags.label("output"), .frames = 2};
  NameFields fields;
  fields.seed = settings.seed;
  fields.model = model.directory.defaults.name;
  fields.prompt = caption;
  fields.width = settings.width;
  fields.height = settings.height;
  stamp_now(fields);
  out.path = output_path(output_pattern(choice), fields);
  if (file_ending(out.path) != ".mp4")
    throw Error(ErrorKind::kUsage, flags.label("output") + " is '" + flags.text("output") +
                                       "'; legal for a movie with sound: a file that ends in "
                                       ".mp4, or a folder that ends in /");
  return out;
}

class Streaming {
 public:
  Streaming(const Flags& flags, const PlannedStream& stream)
      : flags_(flags),
        stream_(stream),
        destination_(destination(flags, *stream_.model, stream_.settings, stream_.caption)) {}

  int run() {
    std::unique_ptr<SoundSource> sound = sound_of(flags_);
    const StreamSplit split = choose_split(flags_.on("live")      ? Pace::kLive
                                           : flags_.on("dry-run") ? Pace::kMeasured
                                                                  : Pace::kAny,
                                           stream_);
    StreamEngine& engine = *split.engine;
    if (flags_.on("dry-run") && flags_.on("json")) {
      std::printf("%s\n", to_json(split).dump().c_str());
      return 0;
    }
    if (flags_.on("dry-run")) {
      print_header(stdout, split);
      return 0;
    }
    if (informative(flags_)) print_header(stderr, split);
    const SessionConfig config = session_config(flags_, engine);
    const std::unique_ptr<MovieSink> movie = destination_.open();
    if (!split.forecast) engine.warm_up(stream_.caption);
    Session session(config);
    StreamWatch watch(config.fps);
    play_sound(
        engine, stream_.caption, session, *sound,
        [&](SessionSlot&& slot) {
          watch.add(slot);
          hash_.add(slot.picture);
          movie->push(slot.picture, slot.sound, slot.discontinuity);
        },
        [] { return stop_requested().load(); });
    print_result(movie->finish(), watch.report(session));
    return 0;
  }

 private:
  void print_header(FILE* out, const StreamSplit& split) const {
    print_stream(out, stream_, split, device_description(split.engine->device(0)));
    std::fprintf(out, "seed    %llu (%s)\n", static_cast<unsigned long long>(stream_.settings.seed),
                 flags_.given("seed") ? "given" : "random");
  }

  void print_result(const std::string& path, const StreamReport& report) {
    const std::string hash = hash_.hex();
    if (informative(flags_)) std::fprintf(stderr, "stream  %s\n", to_string(report).c_str());
    if (path.empty()) return;
    if (flags_.on("json")) {
      Json object = to_json(report);
      object["output"] = path;
      object["framehash"] = hash;
      object["seed"] = stream_.settings.seed;
      object["caption"] = stream_.caption;
      std::printf("%s\n", object.dump().c_str());
    } else {
      std::printf("%s %s %.2f\n", path.c_str(), hash.c_str(), report.seconds);
    }
  }

  const Flags& flags_;
  const PlannedStream& stream_;
  const Destination destination_;
  FrameHash hash_;
};

}  // namespace

int run_stream(const Flags& flags) {
  const bool listens = flags.given("listen");
  if (!listens) refuse_without_listener(flags);
  const Ranks ranks = ranks_of(flags);
  return lead_streams(ranks, planned_stream(flags, ranks), [&](const PlannedStream& stream) {
    return listens ? run_live(flags, stream) : Streaming(flags, stream).run();
  });
}

}  // namespace weft
