// weft serve: draws the jobs that clients send, and shows them on a page.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "apps/batch/job_drawing.h"
#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/generate/expand.h"
#include "apps/generate/resume.h"
#include "apps/generate/stop.h"
#include "apps/serve/jobs/adapters.h"
#include "apps/serve/jobs/folder_owner.h"
#include "apps/serve/jobs/job.h"
#include "apps/serve/jobs/job_files.h"
#include "apps/serve/jobs/job_limits.h"
#include "apps/serve/jobs/job_routes.h"
#include "apps/serve/jobs/memory_check.h"
#include "apps/serve/jobs/older_jobs.h"
#include "apps/serve/jobs/replica_flags.h"
#include "apps/serve/jobs/replicas.h"
#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/listen_flags.h"
#include "apps/serve/openai/served_model.h"
#include "apps/serve/page_routes.h"
#include "apps/serve/server_routes.h"
#include "apps/stream/plan_stream.h"
#include "apps/worker/job_team.h"
#include "apps/worker/served_workers.h"
#include "engine/job/speech_chunks.h"
#include "engine/runner/job_errors.h"
#include "engine/runner/job_runner.h"
#include "engine/runner/result_files.h"
#include "engine/service/job_failure.h"
#include "io/json.h"
#include "models/presets.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds, std::chrono::steady_clock;

constexpr milliseconds kLook{50};           // between looks for a signal
constexpr int kLooksForJobs = 40;           // to one for jobs of earlier versions
constexpr milliseconds kConnections{2000};  // for connections to end, after the last job
constexpr int kMostDrawings = 256;          // requests that wait for their pictures
constexpr int kMostTasks = 16;              // short work beside the server's thread
constexpr int kMostPlannings = 4;           // requests that wait for what would fit

std::string folder_of(const Flags& flags) {
  std::string folder = flags.text("output");
  if (!folder.ends_with('/')) folder += '/';
  try {
    fs::create_directories(folder);
    // Stored jobs name their files, wherever the next server is started.
    return fs::absolute(folder).lexically_normal().string();
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorKind::kOutput, error.what());
  }
}

std::string store_of(const Flags& flags, const std::string& folder) {
  if (!flags.given("store")) return folder + "jobs.sqlite";
  const std::string store = flags.text("store");
  return store == "none" ? "" : store;
}

// Refuses replicas of the processes of a launcher, which draw one job together.
void check_launched(const Flags& flags, const ReplicaFlags& replicas) {
  const Ranks ranks = ranks_of(flags);
  if (!ranks.processes || (replicas.replicas == 1 && !starts_workers(flags))) return;
  const std::string what = starts_workers(flags)
                               ? flags.label("workers") + " is " + flags.text("workers")
                               : "there are " + std::to_string(replicas.replicas) + " replicas";
  throw AgreedError(ErrorKind::kUsage,
                    what + ", but the server was started as " + ranks.description +
                        ", which are the ranks of one; legal: one replica, or one process");
}

// Teams of one model and one language model, each with its own ranks; one where they are not to
// draw.
std::vector<std::unique_ptr<JobTeam>> make_teams(const ReplicaFlags& replicas) {
  std::vector<std::unique_ptr<JobTeam>> teams;
  const auto expander = expander_of(replicas.flags);
  teams.push_back(std::make_unique<JobTeam>(replicas.flags, expander));
  const auto model = teams.front()->runner().generator().model();
  while (!starts_workers(replicas.flags) && std::ssize(teams) < replicas.replicas)
    teams.push_back(std::make_unique<JobTeam>(replicas.flags, expander, model));
  return teams;
}

class Serving {
 public:
  using Teams = std::vector<std::unique_ptr<JobTeam>>;
  Serving(const Flags& flags, const ReplicaFlags& replicas, const Teams& teams)
      : flags_(flags),
        folder_(folder_of(flags)),
        owner_(folder_, store_of(flags, folder_)),
        limits_(job_limits(flags)),
        replicas_(replicas),
        teams_(teams),
        planner_(runner().generator().model(), runner().generator().options()),
        planner_of_links_(runner().generator().model(), runner().generator().options()),
        program_(program_of(planner_)),
        adapters_(flags, planner_.model()),
        expands_(teams.front()->expands()),
        files_(flags, folder_),
        user_(store_of(flags, folder_)),
        older_jobs_(planner_, program_),
        service_(service_settings()) {
    state_.measure = [this] {
      const auto queued = service_.store().counts()[static_cast<size_t>(JobState::kQueued)];
      state_.metrics.set("weft_jobs_queued", static_cast<double>(queued));
    };
  }

  int run() {
    files_.remove_orphans(service_.store(), user_);
    user_.recover(service_.store());
    ServedWorkers workers(
        {.flags = flags_,
         .team = replicas_.flags,
         .replicas = replicas_.replicas,
         .folder = folder_,
         .result_left =
             [this](const StoredJob& job) { return files_.result_left(job, planner_of_links_); },
         .service = service_,
         .metrics = job_metrics_,
         .state = state_});
    // These outlive the server, whose routes use them.
    WorkQueue desk(kMostDrawings), tasks(kMostTasks), planning(kMostPlannings);
    if (!starts_workers(flags_))
      memory_.emplace(planner_, runner(), planning, [&] { return workers.drawing() > 0; });
    ServerSettings settings = settings_of_server(desk, tasks);
    settings.websockets.push_back(workers.route());
    HttpServer server(settings);
    server.start();
    {
      const std::jthread watch([this](const std::stop_token& over) { await_signal(over); });
      if (starts_workers(flags_))
        serve_by_workers(workers, server.port());
      else
        serve_by_threads(server.port());
      service_.drain();
      workers.await_jobs();
    }
    workers.await_end();
    server.drain(kConnections);
    if (fatal_) throw Error(*fatal_);
    state_.log.write(LogLevel::kInfo, "ended", "The server ends.");
    return 0;
  }

 private:
  void serve_by_threads(uint16_t port) {
    state_.log.write(LogLevel::kInfo, "warm_up", "The model is loaded.");
    state_.readiness.set_reason("The model is loaded and draws a first picture.");
    if (!warm_up()) return;
    state_.readiness.set_ready();
    tell_address(flags_, state_.log, "Jobs can be drawn.", port);
    const Replicas drawing(service_, job_metrics_, program_, draws());
  }
  void serve_by_workers(ServedWorkers& workers, uint16_t port) {
    workers.start(port);
    if (workers.await_ready([] { return stop_requested().load(); }))
      tell_address(flags_, state_.log, "Jobs can be drawn.", port);
    while (!stop_requested()) std::this_thread::sleep_for(kLook);
    workers.drain();
  }

  const JobRunner& runner() const { return teams_.front()->runner(); }

  Service::Settings service_settings() {
    constexpr double kHour = 3600;
    Service::Settings settings;
    settings.store = store_of(flags_, folder_);
    settings.limits.queued = static_cast<int>(*flags_.integer("max-queue"));
    settings.limits.queued_per_owner = static_cast<int>(*flags_.integer("max-queue-per-key"));
    settings.limits.kept_seconds = *flags_.real("keep-hours") * kHour;
    if (flags_.given("job-deadline")) settings.job_deadline_seconds = *flags_.real("job-deadline");
    settings.ended = [this](const StoredJob& job) { ended(job); };
    settings.warned = [this](const std::string& line) {
      state_.log.write(LogLevel::kWarning, "store", without_folders(line));
    };
    settings.forgotten = [this](const StoredJob& job) { files_.remove(job.job); };
    return settings;
  }

  ServerSettings settings_of_server(WorkQueue& desk, WorkQueue& tasks) {
    ServerSettings settings = listener_settings(flags_);
    settings.upload_folder = folder_;
    settings.routes = server_routes(state_, kServe);
    const JobServices services{.read = [this](const SentJob& sent) { return read(sent); },
                               .remove_files = [this](const NewJob& job) { files_.remove(job); },
                               .draining = [this] { return draining_.load(); }};
    for (Route& route : job_routes(service_, services)) settings.routes.push_back(std::move(route));
    const bool has_tls = !settings.certificate_file.empty();
    for (Route& route : openai_routes(service_, services,
                                      {.generator = planner_,
                                      .flags = flags_,
                                      .desk = desk,
                                      .tasks = tasks,
                                      .scheme = has_tls ? "https" : "http",
                                      .facts = offers()}))
      settings.routes.push_back(std::move(route));
    settings.routes.push_back({"GET", "/v1/model", [body = model_text()](const HttpRequest&) {
                                 return HttpResponse{.body = body};
                               }});
    settings.routes.push_back(page_route("/", "jobs.html"));
    for (const std::string file : {"live.css", "jobs.css", "jobs.js"})
      settings.routes.push_back(page_route("/pages/" + file, file));
    settings.answered = [this](const AnsweredRequest& request) { state_.answered(request); };
    return settings;
  }

  // The settings of a job that leaves all of them open.
  Json default_fields() const {
    JobSpec job = job_of(flags_).spec;
    take_facts(job, flag_of);
    take_preset(job, planner_.model()->directory, flag_of);
    const Request open = request_of(job, planner_.defaults(), planner_.limits(), flag_of);
    job.request = planner_.resolve(with_any_inputs(open, planner_.model()->directory));
    nlohmann::json defaults = to_json(job);
    hide_folders(defaults);
    for (const char* field : {"prompt", "lora"}) defaults.erase(field);
    for (const char* field : kFileFields) defaults.erase(field);
    return defaults;
  }

  // Lists the names that a job may give, and its settings where it gives none.
  Json offers() const {
    Json presets = Json::array();
    for (const Preset* preset : presets_for(planner_.model()->directory))
      presets.push_back(preset->name);
    return {{"adapters", adapters_.names()},
            {"presets", std::move(presets)},
            {"expand_prompt", expands_},
            {"defaults", default_fields()}};
  }

  // The model, the place where it computes, and what it offers.
  std::string model_text() const {
    const std::string layout = runner().ranks().alone() ? "one rank" : layout_text(replicas_.flags);
    Json text{{"model", planner_.model_name()},
              {"device", device_description(planner_.options().device)},
              {"dtype", to_string(planner_.options().dtype)},
              {"replicas", replicas_.replicas},
              {"ranks", runner().ranks().count},
              {"layout", layout}};
    text.update(offers());
    return text.dump() + "\n";
  }

  // Each team draws one picture, so that its weights are loaded. False where the server shall end.
  bool warm_up() {
    try {
      for (const auto& team : teams_) team->warm_up(stop_requested());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kStopped) return false;
      throw;
    }
    return !stop_requested();
  }

  std::vector<DrawJob> draws() {
    std::vector<DrawJob> draws;
    for (const auto& team : teams_)
      draws.push_back([this, &team = *team](const StoredJob& job, ProgressListener& listener,
                                            const std::atomic<bool>& stop) {
        try {
          return files_.drawn(team, job, listener, stop);
        } catch (...) {
          if (team.broken()) end_with(current_error());
          throw;
        }
      });
    return draws;
  }

  // Ranks that are processes of a launcher end together, and the server with them.
  void end_with(const Error& error) {
    fatal_.emplace(ErrorKind::kComm, error.what());
    service_.drain();
    request_stop();
  }

  // On the server's thread.
  NewJob read(const SentJob& sent) {
    const std::string where = kSentJob;
    GivenJob given = sent_job(sent.fields, where);
    JobSpec& spec = given.spec;
    check_prompts(spec, limits_, where);
    check_reference_count(spec, sent.files, planner_.model()->directory.pictures, where);
    // Pictures of one request differ, whoever has set the seed.
    if (spec.seeded) spec.request.seed += static_cast<uint64_t>(sent.number);
    NewJob job{.id = sent.id, .program = program_};
    save_sent_files(spec, folder_ + job.id, where, sent.files);
    const bool expands = given.expand.value_or(false);
    try {
      job.request = stored_text(without_folders(spec), expands);
      spec.id = job.id;
      check_pictures(spec, limits_, where);
      take_facts(spec, given.label);
      Drawing drawing = placed_job(given, planner_, {.where = where, .folder = folder_}).drawing;
      check_work(planner_, drawing.spec.request, limits_, where);
      if (memory_) memory_->check(drawing.spec.request);
      drawing.spec.seeded = true;
      job.resolved = stored_text(drawing.spec, expands);
      job.output = drawing.path;
    } catch (...) {
      remove_sent_files(spec);
      rethrow_without_lora_folders();
    }
    return job;
  }

  // A team writes the caption, just before it draws the job.
  static std::string stored_text(const JobSpec& spec, bool expands) {
    Json job = to_json(spec);
    if (expands) job["expand_prompt"] = true;
    return job.dump();
  }

  // The job of a body, which names nothing on this machine.
  GivenJob sent_job(const std::string& body, const std::string& where) const {
    const size_t first = body.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || body[first] != '{')
      throw Error(ErrorKind::kUsage,
                  where + " is no JSON object; legal: its fields, as {\"prompt\": \"a red ball\"}");
    check_json(body, where);
    nlohmann::json fields = parse_json(body, where);
    if (const auto loras = fields.find("lora"); loras != fields.end() && loras->is_string())
      *loras = adapters_.with_files(loras->get<std::string>(), where + ": lora");
    GivenJob given = job_of(flags_, {1, fields.dump()}, where);
    const JobSpec& spec = given.spec;
    const auto refuse = [&](const char* field, const std::string& value, const char* why) {
      throw Error(ErrorKind::kUsage,
                  where + ": " + field + " is '" + value + "', legal: none, " + why);
    };
    if (!spec.id.empty()) refuse("id", spec.id, "as the server names its jobs");
    if (!spec.output.empty()) refuse("output", spec.output, "as the server names its files");
    if (given.expand.value_or(false) && !expands_)
      throw Error(ErrorKind::kUsage, where +
                                         ": expand_prompt is true, legal: false, as this server "
                                         "was started without --expand-prompt");
    if (spec.request.endless) refuse("endless", "true", "as a server draws jobs that end");
    return given;
  }

  void ended(const StoredJob& job) {
    // A job that the server's end stopped goes on at the next start.
    if (job.state != JobState::kCompleted) files_.remove_leftovers(job.job);
    job_metrics_.ended(job);
    ServerLog::Fields fields{{"job", job.job.id}, {"state", to_string(job.state)}};
    if (!job.error.empty()) fields.emplace_back("code", error_code_of(job));
    state_.log.write(job.state == JobState::kFailed ? LogLevel::kWarning : LogLevel::kInfo, "job",
                     "A job ended.", fields);
  }

  // Nothing gives them back, so a server calls this once it can draw. One of an earlier version may
  // take further ones until it ends.
  void take_older_jobs() {
    if (const int taken = older_jobs_.take_over(service_.store()); taken > 0)
      state_.log.write(LogLevel::kInfo, "older_jobs", "Jobs of an earlier version are drawn.",
                       {{"jobs", std::to_string(taken)}});
  }

  // Drains when a signal came. The running jobs get the time of --drain-seconds.
  void await_signal(const std::stop_token& over) {
    for (int looks_left = 0; !stop_requested() && !over.stop_requested();) {
      std::this_thread::sleep_for(kLook);
      if (state_.readiness.why_not() || looks_left-- > 0) continue;
      without_throwing([this] { take_older_jobs(); });
      looks_left = kLooksForJobs;
    }
    if (!stop_requested()) return;
    draining_ = true;
    state_.readiness.set_draining();
    state_.log.write(LogLevel::kInfo, "draining", "The server takes no more jobs.");
    service_.drain();
    const auto deadline =
        steady_clock::now() + std::chrono::seconds(flags_.integer("drain-seconds").value_or(0));
    while (steady_clock::now() < deadline && !over.stop_requested())
      std::this_thread::sleep_for(kLook);
    service_.stop_running();
  }

  const Flags& flags_;
  const std::string folder_;
  const FolderOwner owner_;
  const JobLimits limits_;
  const ReplicaFlags& replicas_;
  const Teams& teams_;
  const Generator planner_;           // of the server's thread
  const Generator planner_of_links_;  // of the threads of workers, one at a time
  const std::string program_;
  const Adapters adapters_;
  const bool expands_;
  const JobFiles files_;
  StoreUser user_;
  OlderJobs older_jobs_;
  std::optional<MemoryCheck> memory_{};  // where teams of this process draw
  ServerState state_;
  ReplicaMetrics job_metrics_{state_.metrics};
  std::atomic<bool> draining_{false};
  std::optional<Error> fatal_{};  // read when no team draws any more
  Service service_;               // last, because it calls the members above
};

}  // namespace

int run_serve(const Flags& flags) {
  const ReplicaFlags replicas = replica_flags(flags);
  check_launched(flags, replicas);
  const auto teams = make_teams(replicas);
  JobTeam& first = *teams.front();
  if (draws_streams_alone(first.runner().generator().model()->directory))
    throw AgreedError(ErrorKind::kUsage,
                      "this model draws streams, which no job is; legal: weft stream --listen " +
                          flags.text("listen") + ", a server of its own beside that of the jobs");
  if (!first.leads()) {
    first.follow();
    return 0;
  }
  try {
    return Serving(flags, replicas, teams).run();
  } catch (const Error& error) {
    // The other processes end, too, and this one alone tells why.
    if (first.runner().ranks().processes && !first.broken())
      throw AgreedError(error.kind(), error.what());
    throw;
  }
}

}  // namespace weft
