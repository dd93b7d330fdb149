#include "apps/worker/served_workers.h"

#include "apps/serve/http/access.h"
#include "apps/serve/listen_flags.h"
#include "apps/serve/server_text.h"
#include "engine/service/job_failure.h"
#include "parallel/transport/processes/ucx.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{50};
constexpr int kKeyWords = 8;

bool of_ranks(const Flags& flags) { return flags.text("workers") == "ranks"; }

// Refuses workers that the server cannot start, or that cannot come together.
void check_workers(const Flags& flags) {
  if (!starts_workers(flags)) return;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUsage,
                flags.label("workers") + " is " + flags.text("workers") + ", but " + why);
  };
  if (flags.given("tls-cert"))
    refuse(
        "the server speaks TLS, which workers do not; legal: --workers threads, or TLS by a "
        "proxy before the server");
  if (of_ranks(flags) && !ucx_built())
    refuse("this build has no UCX; legal: threads, processes, or a build with -DWEFT_UCX=ON");
}

// The address at which workers of this machine reach the server.
std::string own_address(const Flags& flags, uint16_t port) {
  std::string host = listener_settings(flags).host;
  if (host == "0.0.0.0") host = "127.0.0.1";
  if (host == "::") host = "::1";
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  return host + ":" + std::to_string(port);
}

}  // namespace

bool starts_workers(const Flags& flags) { return flags.text("workers") != "threads"; }

ServedWorkers::ServedWorkers(const Settings& settings)
    : settings_(settings),
      key_(settings.flags.given("api-key-file") ? read_key_file(settings.flags.text("api-key-file"))
                                                : random_hex(kKeyWords)),
      host_({.folder = settings.folder,
             .key = key_,
             .take =
                 [this](const std::string& team, const std::string& program,
                        const std::function<bool()>& give_up) {
                   settings_.metrics.waits(team);
                   std::unique_ptr<HeldJob> held = settings_.service.take(team, program, give_up);
                   if (held) settings_.metrics.begins(team, held->job());
                   return held;
                 },
             .result_left =
                 [this](const StoredJob& job) {
                   const std::lock_guard lock(left_mutex_);
                   return settings_.result_left(job);
                 },
             .heard = [this](const std::string& worker,
                             WorkerEvent event) { heard(worker, event); }}) {
  check_workers(settings.flags);
}

ServedWorkers::~ServedWorkers() { await_end(); }

WebSocketRoute ServedWorkers::route() { return host_.route(); }

void ServedWorkers::start(uint16_t port) {
  if (!starts_workers(settings_.flags)) return;
  const auto ranks = static_cast<int>(settings_.team.integer("ranks").value_or(1));
  WorkerProcesses::Settings settings{
      .arguments = worker_arguments(settings_.team),
      .join = own_address(settings_.flags, port),
      .key = key_,
      .teams = settings_.replicas,
      .processes = of_ranks(settings_.flags) ? ranks : 1,
      .told = [this](const std::string& worker, const std::string& line) { told(worker, line); }};
  settings_.state.readiness.set_reason("The workers load the model.");
  auto processes = std::make_unique<WorkerProcesses>(std::move(settings));
  const std::lock_guard lock(mutex_);
  processes_ = std::move(processes);
}

void ServedWorkers::heard(const std::string& worker, WorkerEvent event) {
  if (event == WorkerEvent::kReady)
    settings_.state.log.write(LogLevel::kInfo, "worker", "A worker joined.", {{"worker", worker}});
  if (event == WorkerEvent::kGone)
    settings_.state.log.write(LogLevel::kInfo, "worker", "A worker left.", {{"worker", worker}});
  const std::lock_guard lock(mutex_);
  if (!processes_) return;
  processes_->heard(worker, event);
  look_after_readiness();
}

void ServedWorkers::told(const std::string& worker, const std::string& line) {
  settings_.state.log.write(LogLevel::kWarning, "worker", without_folders(line),
                            {{"worker", worker}});
  const std::lock_guard lock(mutex_);
  if (processes_) look_after_readiness();
}

// Under the lock.
void ServedWorkers::look_after_readiness() {
  const bool is_hopeless = processes_->hopeless();
  if (processes_->ready() > 0)
    settings_.state.readiness.set_ready();
  else if (is_hopeless)
    settings_.state.readiness.set_reason("The workers end before they are ready.");
  if (is_hopeless && !was_hopeless_)
    settings_.state.log.write(LogLevel::kError, "workers_fail",
                              "Each worker ended five times before it was ready.");
  was_hopeless_ = is_hopeless;
  changed_.notify_all();
}

bool ServedWorkers::await_ready(const std::function<bool()>& give_up) {
  std::unique_lock lock(mutex_);
  while (!give_up()) {
    if (processes_ && processes_->ready() > 0) return true;
    changed_.wait_for(lock, kLook);
  }
  return false;
}

void ServedWorkers::drain() {
  const std::lock_guard lock(mutex_);
  if (processes_) processes_->drain();
}

int ServedWorkers::drawing() { return host_.drawing(); }

void ServedWorkers::await_jobs() {
  while (drawing() > 0) std::this_thread::sleep_for(kLook);
}

void ServedWorkers::await_end() {
  std::unique_ptr<WorkerProcesses> ending;
  {
    const std::lock_guard lock(mutex_);
    ending = std::move(processes_);
  }
}

}  // namespace weft
