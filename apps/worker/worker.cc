// weft worker: draws the jobs of a server in a process of its own.
#include "apps/worker/worker.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "apps/commands.h"
#include "apps/generate/expand.h"
#include "apps/generate/stop.h"
#include "apps/serve/http/access.h"
#include "apps/worker/messages.h"
#include "engine/runner/job_errors.h"
#include "engine/service/preview_wish.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

using std::chrono::milliseconds, std::chrono::steady_clock;

constexpr milliseconds kSignalLook{100};
constexpr milliseconds kProgressPause{50};  // between two messages of progress
constexpr size_t kMostFileBytes = 4096;     // of the file that shows the folder

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

ServerAddress server_address(const Flags& flags) {
  const std::string text = flags.text("join");
  const size_t colon = text.rfind(':');
  ServerAddress address{.host = text.substr(0, colon)};
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  const char* end = port.data() + port.size();
  const auto [stopped, error] = std::from_chars(port.data(), end, address.port);
  if (address.host.empty() || port.empty() || error != std::errc() || stopped != end ||
      address.port == 0)
    throw Error(ErrorKind::kUsage, flags.label("join") + " is '" + text +
                                       "'; legal: HOST:PORT of the server's --listen, as "
                                       "127.0.0.1:8188 or [::1]:8188");
  if (address.host.starts_with('[') && address.host.ends_with(']'))
    address.host = address.host.substr(1, address.host.size() - 2);
  return address;
}

// The key of --api-key-file, or that of the server which started this process.
std::string worker_key(const Flags& flags) {
  if (flags.given("api-key-file")) return read_key_file(flags.text("api-key-file"));
  const char* handed = std::getenv(kWorkerKeyVariable);
  return handed ? handed : "";
}

// The text of the file by which the server sees that this process has its folder; "" where it has
// not.
std::string text_of_folder(const std::string& path) {
  try {
    return read_text_file(path, kMostFileBytes);
  } catch (const Error&) {
    return "";
  }
}

}  // namespace

// Sends what a job tells, so seldom that the server keeps up.
class WorkerSession::Reporter final : public ProgressListener {
 public:
  Reporter(WorkerSession& session, int previews) : session_(session), wanted_(previews) {}

  void progress(const Progress& progress) override {
    const steady_clock::time_point now = steady_clock::now();
    if (now < next_) return;
    next_ = now + kProgressPause;
    session_.tell("progress", {{"progress", to_json(progress)}});
  }
  void preview(const Preview& preview) override {
    if (wanted_.due(preview.step, preview.total)) wanted_.made();
    session_.connection_->send_binary(preview_message(preview));
  }
  bool wants_preview(int step, int total) override { return wanted_.due(step, total); }
  void warning(const std::string& line) override {
    constexpr int kMost = 20;
    if (warnings_++ < kMost) session_.tell("warning", {{"line", line}});
  }

 private:
  WorkerSession& session_;
  EvenPreviews wanted_;  // that clients wait for
  steady_clock::time_point next_{};
  int warnings_ = 0;
};

WorkerSession::WorkerSession(Settings settings, JobTeam& team)
    : settings_(std::move(settings)), team_(team) {}

int WorkerSession::run() {
  connection_.emplace(
      settings_.server, kWorkerPath, settings_.key, [this](std::string_view text) { heard(text); },
      [this] { lost(); });
  const std::jthread watch([this](const std::stop_token& over) {
    while (!stop_requested() && !over.stop_requested()) std::this_thread::sleep_for(kSignalLook);
    if (stop_requested()) end_soon();
  });
  introduce();
  if (warm_up()) {
    tell("ready");
    while (const auto job = next_job()) draw(*job);
  }
  require_server();
  return 0;
}

void WorkerSession::heard(std::string_view text) {
  const Message message = read_worker_message(text);
  const std::string type = message.at("type");
  const std::lock_guard lock(mutex_);
  if (type == "welcome") {
    welcome_ = message;
  } else if (type == "refused") {
    refusal_ = json_string(message, "message", "the server's message");
    stop_ = true;
  } else if (type == "job") {
    job_ = message;
    job_id_ = json_string(message, "id", "the server's message");
    if (!shall_end_) stop_ = false;
  } else if (type == "stop") {
    if (json_string(message, "id", "the server's message") == job_id_) stop_ = true;
  } else if (type == "end") {
    shall_end_ = true;
  }
  changed_.notify_all();
}

void WorkerSession::lost() {
  const std::lock_guard lock(mutex_);
  is_lost_ = stop_ = true;
  changed_.notify_all();
}

void WorkerSession::end_soon() {
  const std::lock_guard lock(mutex_);
  shall_end_ = stop_ = true;
  changed_.notify_all();
}

bool WorkerSession::ends_after_job() {
  const std::lock_guard lock(mutex_);
  return shall_end_ || team_.broken();
}

void WorkerSession::tell(const char* type, Json fields) {
  connection_->send_text(worker_message(type, std::move(fields)));
}

// Throws why the server does not want this worker any more, if it does not.
void WorkerSession::require_server() {
  const std::lock_guard lock(mutex_);
  if (!refusal_.empty())
    throw AgreedError(ErrorKind::kUsage, "the server refuses this worker: " + refusal_);
  if (is_lost_ && !shall_end_)
    throw Error(ErrorKind::kComm, "the connection to the server has ended");
}

void WorkerSession::introduce() {
  Message welcome;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return welcome_ || is_lost_ || shall_end_; });
    if (welcome_) welcome = *welcome_;
  }
  if (welcome.is_null()) return;
  const std::string file = path_of_text(json_string(welcome, "file", "the server's message"));
  tell("hello", {{"protocol", kWorkerProtocol},
                 {"program", program_of(team_.runner().generator())},
                 {"name", settings_.name},
                 {"host", host_name()},
                 {"pid", getpid()},
                 {"seen", text_of_folder(file)}});
}

// False where the session has ended meanwhile.
bool WorkerSession::warm_up() {
  try {
    if (!stop_) team_.warm_up(stop_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kStopped) throw;
  }
  return !stop_;
}

std::optional<WorkerSession::Message> WorkerSession::next_job() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return job_ || shall_end_ || is_lost_ || !refusal_.empty(); });
  return std::exchange(job_, std::nullopt);
}

void WorkerSession::draw(const Message& message) {
  constexpr const char* kWhat = "the server's message";
  const std::string id = json_string(message, "id", kWhat);
  Reporter reporter(*this, static_cast<int>(json_int_or(message, "previews", kWhat, 0)));
  try {
    const TeamJob job{.spec = json_field(message, "spec", kWhat).dump(),
                      .output = path_of_text(json_string(message, "output", kWhat))};
    const std::string result = team_.draw(job, reporter, stop_);
    tell("done", {{"id", id}, {"result", parse_json(result, kWhat)}, {"ends", ends_after_job()}});
  } catch (...) {
    const Error error = current_error();
    Json failed = to_json(error);
    failed["id"] = id;
    failed["ends"] = ends_after_job();
    tell("failed", std::move(failed));
    if (team_.broken()) throw Error(error);
  }
}

int run_worker(const Flags& flags) {
  if (!flags.given("join"))
    throw Error(ErrorKind::kUsage, "weft worker needs --join HOST:PORT of a weft serve");
  const ServerAddress server = server_address(flags);
  const std::string key = worker_key(flags);
  JobTeam team(flags, expander_of(flags));
  if (!team.leads()) {
    team.follow();
    return 0;
  }
  std::string name = flags.text("worker-name");
  if (name.empty()) name = host_name() + "-" + std::to_string(getpid());
  return WorkerSession({.server = server, .key = key, .name = name}, team).run();
}

}  // namespace weft
