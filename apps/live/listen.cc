#include "apps/live/listen.h"

#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#include "apps/generate/stop.h"
#include "apps/live/live_faces.h"
#include "apps/serve/listen_flags.h"
#include "apps/serve/page_routes.h"
#include "apps/stream/stream_flags.h"
#include "engine/session/stream_split.h"

namespace weft {
namespace {

constexpr int64_t kLoopPictures = 48;
constexpr size_t kMostLoops = 16;

// Media of so many pictures travel together. They are small, since a fragment is sent when its last
// picture was shown, and an eighth of a segment's length would cost too many headers.
constexpr int kFragmentPictures = 4, kFragmentsPerKey = 3;

// An interrupted face goes on so long with what is encoded. A page has about 0.3 s more in its
// player, and all of it must be gone after 0.6 s and a segment.
constexpr std::chrono::milliseconds kKeptPictures{400};

// The loops that were drawn, by caption.
class LoopCache {
 public:
  LoopCache(TurnRunner& runner, const SessionConfig& config) : runner_(runner), config_(config) {}

  std::shared_ptr<const SessionLoops> of(const std::string& caption) {
    const std::lock_guard lock(mutex_);
    if (const auto found = loops_.find(caption); found != loops_.end()) return found->second;
    if (loops_.size() == kMostLoops) loops_.clear();
    return loops_[caption] = draw_loops(runner_, config_, caption, kLoopPictures);
  }

 private:
  TurnRunner& runner_;
  const SessionConfig config_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const SessionLoops>> loops_;
};

void refuse_what_clients_state(const Flags& flags) {
  for (const char* name : {"render", "say", "live", "output", "dry-run", "pcm-format", "pcm-rate"})
    if (flags.typed(name))
      throw Error(ErrorKind::kUsage, flags.label(name) +
                                         " is given beside --listen, whose clients bring their "
                                         "sound and take their pictures; legal: one of them");
}

class LiveServer {
 public:
  LiveServer(const Flags& flags, const PlannedStream& stream)
      : flags_(flags), stream_(stream), settings_(listener_settings(flags)) {
    settings_.routes = server_routes(state_, kStream);
    for (Route& route : live_page_routes()) settings_.routes.push_back(std::move(route));
    settings_.websockets.push_back(
        {.path = "/v1/stream",
         .refuse = [this](const HttpRequest&) { return state_.refuse_yet(); },
         .open = [this](const HttpRequest&,
                        auto socket) { return faces_->open(std::move(socket)); }});
    settings_.answered = [this](const AnsweredRequest& request) { state_.answered(request); };
    server_ = std::make_unique<HttpServer>(settings_);
  }

  int run() {
    server_->start();
    state_.readiness.set_reason("The model is loaded and draws for nobody.");
    warm_up();
    if (!stop_requested()) begin();
    while (!stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      state_.metrics.set("weft_connections", server_->connections());
      state_.metrics.set("weft_websockets", server_->websockets());
      if (engine_) engine_->check_ranks();
    }
    return end();
  }

 private:
  // Loads the weights and draws the loops that faces begin with.
  void warm_up() {
    StreamSplit split = choose_split(Pace::kLive, stream_);
    engine_ = std::move(split.engine);
    if (!split.forecast) engine_->warm_up(stream_.caption);
    SessionConfig session = session_config(flags_, *engine_);
    session.revoke = std::chrono::seconds(1);
    session.kept = kKeptPictures;
    runner_ = std::make_unique<TurnRunner>(*engine_);
    loops_ = std::make_unique<LoopCache>(*runner_, session);
    loops_->of(stream_.caption);
    stage_ = std::make_unique<FaceStage>(FaceStage{
        .runner = *runner_,
        .session = session,
        .movie = movie(),
        .voice = flags_.text("voice"),
        .loops = [this](const std::string& caption) { return loops_->of(caption); },
        .caption = [this](const auto& caption,
                          const auto& mood) { return stream_caption(defaults(), caption, mood); }});
    faces_ = std::make_unique<LiveFaces>(*stage_, live_settings(), state_);
  }

  const StreamDefaults& defaults() const { return *stream_.model->directory.defaults.stream; }

  MovieSettings movie() const {
    MovieSettings movie{.video = {}, .sample_rate = SoundBands::kRate};
    movie.video.width = static_cast<int>(stream_.settings.width);
    movie.video.height = static_cast<int>(stream_.settings.height);
    movie.video.fps_num = static_cast<int>(defaults().fps);
    movie.fragment = kFragmentPictures;
    movie.key_every = kFragmentsPerKey;
    return movie;
  }

  LiveSettings live_settings() const {
    LiveSettings live;
    live.model = stream_.model->directory.defaults.name;
    live.caption = stream_.caption;
    live.moods = defaults().moods;
    if (flags_.given("mood"))
      live.mood = flags_.text("mood");
    else if (!live.moods.empty())
      live.mood = live.moods.front();
    live.most_faces = static_cast<int>(*flags_.integer("max-sessions"));
    return live;
  }

  void begin() {
    state_.readiness.set_ready();
    tell_address(flags_, state_.log, "Clients can connect.", server_->port());
  }

  // Lets the faces speak what they have, and ends.
  int end() {
    state_.log.write(LogLevel::kInfo, "draining", "The server is about to end.");
    state_.readiness.set_draining();
    if (faces_) faces_->drain();
    const bool in_time = server_->drain(std::chrono::seconds(*flags_.integer("drain-seconds")));
    server_->stop();
    faces_.reset();
    runner_.reset();
    state_.log.write(
        LogLevel::kInfo, "ended",
        in_time ? "All clients were served." : "Clients that took too long were cut off.");
    return 0;
  }

  const Flags& flags_;
  const PlannedStream& stream_;
  ServerSettings settings_;
  ServerState state_;
  std::unique_ptr<StreamEngine> engine_;
  std::unique_ptr<TurnRunner> runner_;
  std::unique_ptr<LoopCache> loops_;
  std::unique_ptr<FaceStage> stage_;
  std::unique_ptr<LiveFaces> faces_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

int run_live(const Flags& flags, const PlannedStream& stream) {
  refuse_what_clients_state(flags);
  return LiveServer(flags, stream).run();
}

}  // namespace weft
