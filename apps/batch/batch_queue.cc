#include "apps/batch/batch_queue.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/command_line/printable.h"
#include "apps/generate/resume.h"
#include "apps/generate/stop.h"
#include "apps/serve/jobs/replicas.h"
#include "engine/runner/result_files.h"
#include "engine/runner/sidecar.h"
#include "io/sha256.h"
#include "io/writable.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds, std::chrono::steady_clock;

constexpr milliseconds kSignalEvery{50};
constexpr milliseconds kStoreEvery{250};
// Those of a batch that wait at the same time leave room for the clients of a server, whose jobs
// come first.
constexpr int kMostWaiting = 64;
constexpr int kBatchPriority = -1;

std::string store_path(const Flags& flags) {
  const std::string store = flags.text("store");
  if (store.empty() || store == "none")
    throw Error(ErrorKind::kUsage, flags.label("store") + " is '" + store +
                                       "', legal: a file, which servers and batches share");
  return store;
}

// The part of a hash that names a batch or a job.
std::string short_hash(const std::string& text) { return sha256_hex(text).substr(0, 24); }

Service::Settings store_settings(const Flags& flags, const JobFiles& files) {
  Service::Settings settings;
  settings.store = store_path(flags);
  settings.limits.queued = std::numeric_limits<int>::max();
  settings.limits.queued_per_owner = kMostWaiting;
  settings.ended = [&files](const StoredJob& job) {
    if (job.state != JobState::kCompleted) files.remove_leftovers(job.job);
  };
  settings.forgotten = [&files](const StoredJob& job) { files.remove(job.job); };
  settings.warned = [](const std::string& line) {
    std::fprintf(stderr, "weft: warning: %s\n", printable(line).c_str());
  };
  return settings;
}

JobFailure failure_in(const StoredJob& stored) {
  if (stored.error.empty())
    return {.code = to_string(stored.state),
            .message = std::string("the job was ") + to_string(stored.state) + " in the store"};
  const nlohmann::json error = parse_json(stored.error, "the stored error");
  return {.code = json_string(error, "code", "the stored error"),
          .message = json_string(error, "message", "the stored error")};
}

}  // namespace

BatchQueue::BatchQueue(const Flags& flags, const std::string& folder, JobTeam& team)
    : flags_(flags),
      owner_(kBatchOwner + short_hash(fs::weakly_canonical(fs::absolute(folder)).string())),
      team_(team),
      planner_(team.runner().generator().model(), team.runner().generator().options()),
      program_(program_of(planner_)),
      files_(flags, folder),
      user_(store_path(flags)),
      service_(store_settings(flags, files_)) {
  user_.recover(service_.store());
}

BatchQueue::Line BatchQueue::line_of(const PlacedJob& placed) const {
  const Drawing& drawing = placed.drawing;
  JobSpec spec = drawing.spec;
  spec.seeded = true;
  const Json resolved = to_json(spec);
  return {.placed = placed,
          .job = {.id = "job_" + short_hash(owner_ + "\n" + spec.id),
                  .program = program_,
                  .owner = owner_,
                  .request = resolved.dump(),
                  .resolved = resolved.dump(),
                  .output = fs::absolute(drawing.path).lexically_normal().string(),
                  .idempotency_key = spec.id,
                  .request_hash = placed.hash,
                  .priority = kBatchPriority}};
}

void BatchQueue::draw(std::span<const PlacedJob> jobs,
                      const std::function<void(const Ended&)>& ended) {
  ended_ = ended;
  lines_.clear();
  for (const PlacedJob& job : jobs) lines_.push_back(line_of(job));
  left_ = lines_.size();
  std::exception_ptr broken;
  {
    const std::jthread account([this](const std::stop_token& over) { keep_account(over); });
    try {
      draw_jobs();
    } catch (...) {
      broken = std::current_exception();
    }
  }
  if (failed_) std::rethrow_exception(failed_);
  look(false);
  if (broken) std::rethrow_exception(broken);
  if (left_ > 0)
    throw Error(ErrorKind::kStopped,
                "stopped: " + std::to_string(left_) + " of " + std::to_string(lines_.size()) +
                    " jobs are not drawn. Those that wait in the store " + flags_.text("store") +
                    " stay there for whoever draws from it; the same command goes on");
}

// Ends when all lines are over, at a signal, or where the account cannot be kept.
void BatchQueue::draw_jobs() {
  const std::string name = "batch-" + std::to_string(getpid());
  const auto is_over = [this] { return left_ == 0 || has_failed_ || stop_requested(); };
  const DrawJob draw = [this](const StoredJob& job, ProgressListener& listener,
                              const std::atomic<bool>& stop) {
    return files_.drawn(team_, job, listener, stop);
  };
  while (const auto held = service_.take(name, program_, is_over)) {
    draw_held(*held, draw);
    if (team_.broken())
      throw Error(ErrorKind::kComm, held->job().job.id + " failed, and with it the processes");
  }
}

void BatchQueue::keep_account(const std::stop_token& over) {
  steady_clock::time_point look_at{};
  try {
    while (!over.stop_requested()) {
      if (stop_requested()) return service_.stop_running();
      if (left_ > 0 && steady_clock::now() >= look_at) {
        look(true);
        look_at = steady_clock::now() + kStoreEvery;
      }
      std::this_thread::sleep_for(kSignalEvery);
    }
  } catch (...) {
    failed_ = std::current_exception();
    has_failed_ = true;
    service_.stop_running();
  }
}

// Tells the lines that are over, and submits others as places become free.
void BatchQueue::look(bool submits) {
  const int64_t version = service_.store().version();
  if (std::exchange(version_, version) == version) return;
  for (Line& line : lines_)
    if (line.at == At::kStore) look_after(line);
  if (!submits) return;
  for (Line& line : lines_)
    if (line.at == At::kHere && !submit(line)) break;
}

void BatchQueue::look_after(Line& line) {
  const std::optional<StoredJob> stored = service_.store().find(line.job.id);
  const bool is_completed = !stored || stored->state == JobState::kCompleted;
  if (is_completed && complete(planner_, line.placed.drawing)) return tell(line);
  if (!stored) {  // forgotten
    line.at = At::kHere;
    version_ = -1;
  } else if (stored->state == JobState::kCompleted) {
    tell(line, JobFailure{.code = error_code(ErrorKind::kOutput),
                          .message = "its result " + line.job.output +
                                     " was drawn, but is not there or is that of another job"});
  } else if (is_over(stored->state)) {
    tell(line, failure_in(*stored));
  }
}

// False where no more lines may wait now.
bool BatchQueue::submit(Line& line) {
  JobStore& store = service_.store();
  if (const auto stored = store.find(line.job.id)) {
    if (!is_waste(line, *stored)) {
      line.at = At::kStore;
      version_ = -1;
      return true;
    }
    if (!is_over(stored->state)) {  // a request that the file no longer has
      service_.cancel(line.job.id);
      if (stored->state == JobState::kRunning) return true;
    }
    store.remove(line.job.id);
  }
  try {
    make_room(line);
  } catch (const Error& error) {
    tell(line, failure_of(error));
    return true;
  }
  switch (service_.submit(line.job).answer) {
    case SubmitAnswer::kNew:
    case SubmitAnswer::kSame:
      line.at = At::kStore;
      return true;
    case SubmitAnswer::kConflict:  // another process was quicker; the next look finds its job
      version_ = -1;
      return true;
    default:
      return false;
  }
}

// True where an earlier run's job is of no use: another request, a failure, or a result that is
// gone or not wanted any more.
bool BatchQueue::is_waste(const Line& line, const StoredJob& stored) const {
  if (stored.job.request_hash != line.job.request_hash) return true;
  if (!is_over(stored.state)) return false;
  return stored.state != JobState::kCompleted || flags_.on("overwrite") ||
         !complete(planner_, line.placed.drawing);
}

// A job of the store never replaces a file that was there before. Error(kOutput).
void BatchQueue::make_room(const Line& line) const {
  const std::string& path = line.job.output;
  if (flags_.on("overwrite")) {
    for (const std::string& file : {path, sidecar_path(path)}) fs::remove(file);
    drop_leftovers(output_names(path), Latents::kRemove);
  }
  check_writable(path, Overwrite::kRefuse);
}

void BatchQueue::tell(Line& line, std::optional<JobFailure> failure) {
  ended_({.job = line.placed, .failure = std::move(failure)});
  line.at = At::kOver;
  --left_;
}

}  // namespace weft
