// weft serve: draws the jobs that clients send, one after the other, and shows them on a page.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "apps/batch/job_drawing.h"
#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/generate/resume.h"
#include "apps/generate/runner_flags.h"
#include "apps/generate/stop.h"
#include "apps/model_folder.h"
#include "apps/scratch_folder.h"
#include "apps/serve/jobs/job_routes.h"
#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/listen_flags.h"
#include "apps/serve/page_routes.h"
#include "apps/serve/server_routes.h"
#include "engine/job/speech_chunks.h"
#include "engine/service/job_runner.h"
#include "engine/service/result_files.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "io/media/image.h"
#include "io/sha256.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds, std::chrono::steady_clock;

constexpr milliseconds kLook{50};           // between looks for a signal
constexpr milliseconds kConnections{2000};  // for connections to end, after the last job

class Silence final : public ProgressListener {
  void progress(const Progress&) override {}
};

std::string folder_of(const Flags& flags) {
  std::string folder = flags.text("output");
  if (!folder.ends_with('/')) folder += '/';
  try {
    fs::create_directories(folder);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::kOutput, error.what());
  }
  return folder;
}

// Jobs come to one process, which could not hand them on.
const Flags& of_one_process(const Flags& flags) {
  if (ranks_of(flags).processes)
    throw Error(ErrorKind::kUsage,
                "weft serve was started as several processes; legal: one process, whose ranks "
                "--ranks or --gpus gives");
  return flags;
}

std::string content_type_of(const std::string& path) {
  return path.ends_with(".png") ? "image/png" : "video/mp4";
}

class Serving {
 public:
  explicit Serving(const Flags& flags)
      : flags_(of_one_process(flags)),
        folder_(folder_of(flags)),
        drawer_(runner_settings(flags), open_model(flags)),
        planner_(drawer_.generator().model(), drawer_.generator().options()),
        queue_({}, &state_.metrics, [this](const ServedJob& job) { ended(job); }) {
    drawer_.keep_ranks();
  }

  int run() {
    const ServerSettings settings = settings_of_server();
    HttpServer server(settings);
    server.start();
    state_.log.write(LogLevel::kInfo, "warm_up", "The model is loaded.");
    {
      const std::jthread watch([this](const std::stop_token& over) { await_signal(over); });
      state_.readiness.set_reason("The model is loaded and draws a first picture.");
      if (warm_up()) {
        state_.readiness.set_ready();
        tell_address(flags_, state_.log, "Jobs can be drawn.", server.port());
        queue_.work([this](const Drawing& drawing, ProgressListener& listener,
                           const std::atomic<bool>& stop) {
          return draw({.all = {drawing}, .listener = &listener, .stop = &stop});
        });
      }
    }
    server.drain(kConnections);
    state_.log.write(LogLevel::kInfo, "ended", "The server ends.");
    return 0;
  }

 private:
  ServerSettings settings_of_server() {
    ServerSettings settings = listener_settings(flags_);
    settings.routes = server_routes(state_, kServe);
    const JobServices services{[this](const std::string& body) { return read(body); },
                               [this](const ServedJob& job) { remove_files(job); }};
    for (Route& route : job_routes(queue_, services)) settings.routes.push_back(std::move(route));
    settings.routes.push_back({"GET", "/v1/model", [body = model_text()](const HttpRequest&) {
                                 return HttpResponse{.body = body};
                               }});
    settings.routes.push_back(page_route("/", "jobs.html"));
    for (const std::string file : {"live.css", "jobs.css", "jobs.js"})
      settings.routes.push_back(page_route("/pages/" + file, file));
    settings.answered = [this](const AnsweredRequest& request) { state_.answered(request); };
    return settings;
  }

  // The model, the place where it computes, and the settings of a job that leaves all of them open.
  std::string model_text() const {
    JobSpec job = job_of(flags_).spec;
    take_facts(job, flag_of);
    const Request open = request_of(job, planner_.defaults(), planner_.limits(), flag_of);
    job.request = planner_.resolve(with_any_inputs(open, planner_.model()->directory));
    Json defaults = to_json(job);
    for (const char* field : {"prompt", "image", "last_image", "audio"}) defaults.erase(field);
    const std::string layout = drawer_.ranks().alone() ? "one rank" : layout_text(flags_);
    return Json{{"model", planner_.model_name()},
                {"device", device_description(planner_.options().device)},
                {"dtype", to_string(planner_.options().dtype)},
                {"ranks", drawer_.ranks().count},
                {"layout", layout},
                {"defaults", std::move(defaults)}}
               .dump() +
           "\n";
  }

  // Draws one picture of the default size in one step, so that the weights are loaded. False where
  // the server shall end.
  bool warm_up() {
    const ScratchFolder scratch;
    GivenJob job{.spec = {}, .label = [](const std::string& field) { return field; }, .model = {}};
    job.spec.id = "warm_up";
    job.spec.request.prompt = "a ball";
    job.spec.request.frames = 1;
    job.spec.request.steps = 1;
    give_any_inputs(job.spec.request, scratch);
    take_facts(job.spec, job.label);
    const JobPlace place{.where = "the warm-up", .folder = scratch.file("")};
    Silence silence;
    try {
      draw({.all = {placed_job(job, drawer_.generator(), place).drawing},
            .listener = &silence,
            .stop = &stop_requested()});
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kStopped) return false;
      throw;
    }
    return !stop_requested();
  }

  // A grey picture for each that the model needs, and silence for a model that follows a sound.
  void give_any_inputs(Request& request, const ScratchFolder& scratch) const {
    const ModelDirectory& model = planner_.model()->directory;
    if (model.chunks.any()) {
      request.audio.path = scratch.file("silence.wav");
      write_file(request.audio.path, silent_wav());
    }
    const PictureConditioning& form = model.pictures;
    const std::string path = scratch.file("grey.png");
    if (form.least == 0) return;
    constexpr int kSide = 64;
    Frame grey(kSide, kSide);
    std::ranges::fill(grey.rgb, uint8_t{128});
    write_png(path, grey, {}, Overwrite::kReplace);
    request.image.path = path;
    if (form.least < 2) return;
    request.last_image.path = path;
    request.frames = 1 + planner_.limits().frame_multiple;
  }

  JobResult draw(const JobRunner::Drawings& drawings) {
    JobResult result;
    std::optional<Error> failed;
    drawer_.arrange(drawings.all);
    drawer_.draw(
        drawings,
        [&](const Finished& done) {
          result.path = done.output();
          result.content_type = content_type_of(result.path);
          result.framehash = done.result.framehash;
          result.frames = done.result.frames;
        },
        [&](size_t, const Error& error) { failed = error; });
    if (failed) throw Error(*failed);
    result.bytes = fs::file_size(result.path);
    result.sha256 = file_hash(result.path);
    return result;
  }

  // On the server's thread.
  ServedJob read(const std::string& body) const {
    const std::string where = "the job";
    const size_t first = body.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || body[first] != '{')
      throw Error(ErrorKind::kUsage,
                  where + " is no JSON object; legal: its fields, as {\"prompt\": \"a red ball\"}");
    GivenJob given = job_of(flags_, {1, body.substr(first)}, where);
    JobSpec& spec = given.spec;
    const auto refuse = [&](const char* field, const std::string& value, const char* why) {
      throw Error(ErrorKind::kUsage,
                  where + ": " + field + " is '" + value + "', legal: none, " + why);
    };
    if (!spec.id.empty()) refuse("id", spec.id, "as the server names its jobs");
    if (!spec.output.empty()) refuse("output", spec.output, "as the server names its files");
    if (spec.request.endless) refuse("endless", "true", "as jobs run one after the other");
    ServedJob job{.id = new_job_id()};
    save_sent_files(spec, folder_ + job.id, where);
    job.request = to_json(without_folders(spec));
    spec.id = job.id;
    try {
      take_facts(spec, given.label);
      job.drawing = placed_job(given, planner_, {.where = where, .folder = folder_}).drawing;
    } catch (...) {
      remove_sent_files(spec);
      throw;
    }
    return job;
  }

  void ended(const ServedJob& job) {
    // A job that the server's end stopped can go on by weft generate --resume.
    const bool by_client = job.state == JobState::kCancelled && !job.failure;
    const OutputNames names = output_names(job.drawing.path);
    if (by_client || job.state == JobState::kFailed)
      for (const std::string& path : files_left(names)) {
        std::error_code ignored;
        fs::remove(path, ignored);
      }
    ServerLog::Fields fields{{"job", job.id}, {"state", to_string(job.state)}};
    if (job.failure) fields.emplace_back("code", job.failure->code);
    state_.log.write(job.state == JobState::kFailed ? LogLevel::kWarning : LogLevel::kInfo, "job",
                     "A job ended.", fields);
  }

  void remove_files(const ServedJob& job) const {
    const OutputNames names = output_names(job.drawing.path);
    drop_leftovers(names, kept_latents(flags_));
    for (const std::string& path : {job.drawing.path, names.sidecar}) fs::remove(path);
    remove_sent_files(job.drawing.spec);
  }

  // Drains when a signal came. The running job gets the time of --drain-seconds.
  void await_signal(const std::stop_token& over) {
    while (!stop_requested() && !over.stop_requested()) std::this_thread::sleep_for(kLook);
    if (!stop_requested()) return;
    state_.readiness.set_draining();
    state_.log.write(LogLevel::kInfo, "draining", "The server takes no more jobs.");
    queue_.drain();
    const auto deadline =
        steady_clock::now() + std::chrono::seconds(flags_.integer("drain-seconds").value_or(0));
    while (steady_clock::now() < deadline && !over.stop_requested())
      std::this_thread::sleep_for(kLook);
    queue_.stop_running();
  }

  const Flags& flags_;
  const std::string folder_;
  JobRunner drawer_;
  const Generator planner_;  // of the server's thread
  ServerState state_;
  JobQueue queue_;
};

}  // namespace

int run_serve(const Flags& flags) { return Serving(flags).run(); }

}  // namespace weft
