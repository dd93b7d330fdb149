#include "apps/serve/jobs/job_queue.h"

#include <algorithm>

#include "apps/generate/progress.h"
#include "apps/preview/preview_file.h"

namespace weft {
namespace {

constexpr size_t kMostWarnings = 16;
constexpr double kMostBeforeTheEnd = 99;

JobFailure draining_failure(bool ran) {
  return {"draining", ran ? "The server ended before the job was complete."
                          : "The server ended before the job began."};
}

}  // namespace

class JobQueue::Listener final : public ProgressListener {
 public:
  Listener(JobQueue& queue, Entry& entry) : queue_(queue), entry_(entry) {}

  void progress(const Progress& heard) override {
    const std::lock_guard lock(queue_.mutex_);
    JobProgress& progress = entry_.job.progress;
    const double percent = std::min(overall_percent(heard), kMostBeforeTheEnd);
    progress = {.percent = std::max(progress.percent, percent),
                .stage = heard.stage,
                .step = heard.step,
                .steps = heard.total,
                .seconds_per_step = heard.seconds_per_step,
                .eta_seconds = heard.eta_seconds};
  }
  void preview(const Preview& heard) override {
    auto preview = std::make_shared<const JobPreview>(
        JobPreview{.step = heard.step, .steps = heard.total, .png = preview_png(heard)});
    const std::lock_guard lock(queue_.mutex_);
    entry_.job.preview = std::move(preview);
  }
  void warning(const std::string& line) override {
    const std::lock_guard lock(queue_.mutex_);
    if (entry_.job.warnings.size() < kMostWarnings)
      entry_.job.warnings.push_back(without_folders(line));
  }

 private:
  JobQueue& queue_;
  Entry& entry_;
};

JobQueue::JobQueue(JobLimits limits, Metrics* metrics, std::function<void(const ServedJob&)> ended)
    : limits_(limits), metrics_(metrics), ended_(std::move(ended)) {
  count_under_lock();
}

JobAnswer JobQueue::add(ServedJob job) {
  const std::lock_guard lock(mutex_);
  if (draining_) return JobAnswer::kDraining;
  if (queued_under_lock() >= limits_.queued) return JobAnswer::kFull;
  const auto entry = std::make_shared<Entry>();
  entry->job = std::move(job);
  entry->job.state = JobState::kQueued;
  entry->job.created = std::chrono::system_clock::now();
  jobs_.push_back(entry);
  count_under_lock();
  changed_.notify_all();
  return JobAnswer::kDone;
}

JobAnswer JobQueue::cancel(const std::string& id) {
  EntryPtr entry;
  {
    const std::lock_guard lock(mutex_);
    entry = find_under_lock(id);
    if (!entry) return JobAnswer::kUnknown;
    const JobState state = entry->job.state;
    if (state == JobState::kCancelled) return JobAnswer::kDone;
    if (is_over(state)) return JobAnswer::kOver;
    entry->cancelled = true;
    if (state == JobState::kRunning) {
      entry->stop = true;
      return JobAnswer::kDone;
    }
    // The lock is left with a state that the worker does not take.
    entry->job.state = JobState::kCancelled;
  }
  finish(*entry, JobState::kCancelled);
  return JobAnswer::kDone;
}

JobAnswer JobQueue::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const EntryPtr entry = find_under_lock(id);
  if (!entry) return JobAnswer::kUnknown;
  if (!is_over(entry->job.state)) return JobAnswer::kActive;
  std::erase(jobs_, entry);
  return JobAnswer::kDone;
}

std::optional<ServedJob> JobQueue::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const EntryPtr entry = find_under_lock(id);
  return entry ? std::optional(copy_under_lock(*entry)) : std::nullopt;
}

std::optional<JobQueue::Page> JobQueue::newest(size_t limit, const std::string& after) const {
  const std::lock_guard lock(mutex_);
  auto at = jobs_.rbegin();
  if (!after.empty()) {
    at =
        std::find_if(at, jobs_.rend(), [&](const EntryPtr& each) { return each->job.id == after; });
    if (at++ == jobs_.rend()) return std::nullopt;
  }
  Page page;
  for (; at != jobs_.rend() && page.jobs.size() < limit; ++at)
    page.jobs.push_back(copy_under_lock(**at));
  page.has_more = at != jobs_.rend();
  return page;
}

void JobQueue::work(const DrawJob& run) {
  while (const EntryPtr entry = next()) run_one(*entry, run);
}

void JobQueue::drain() {
  std::vector<EntryPtr> cancelled;
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
    for (const EntryPtr& entry : jobs_)
      if (entry->job.state == JobState::kQueued) {
        entry->job.state = JobState::kCancelled;
        cancelled.push_back(entry);
      }
    changed_.notify_all();
  }
  for (const EntryPtr& entry : cancelled)
    finish(*entry, JobState::kCancelled, draining_failure(false));
}

void JobQueue::stop_running() {
  const std::lock_guard lock(mutex_);
  if (draining_ && running_) running_->stop = true;
}

// Waits for a job and marks it as running. Null where the queue was drained.
JobQueue::EntryPtr JobQueue::next() {
  std::unique_lock lock(mutex_);
  EntryPtr found;
  changed_.wait(lock, [&] {
    const auto entry = std::ranges::find(jobs_, JobState::kQueued,
                                         [](const EntryPtr& each) { return each->job.state; });
    if (entry != jobs_.end()) found = *entry;
    return found || draining_;
  });
  if (!found) return nullptr;
  found->job.state = JobState::kRunning;
  found->job.started = std::chrono::system_clock::now();
  running_ = found;
  count_under_lock();
  return found;
}

void JobQueue::run_one(Entry& entry, const DrawJob& run) {
  Listener listener(*this, entry);
  try {
    JobResult result = run(entry.job.drawing, listener, entry.stop);
    {
      const std::lock_guard lock(mutex_);
      entry.job.result = std::move(result);
    }
    finish(entry, JobState::kCompleted);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kStopped)
      return finish(entry, JobState::kFailed, failure_of(error));
    bool by_client = false;
    {
      const std::lock_guard lock(mutex_);
      by_client = entry.cancelled;
    }
    finish(entry, JobState::kCancelled,
           by_client ? std::nullopt : std::optional(draining_failure(true)));
  } catch (const std::exception& error) {
    finish(entry, JobState::kFailed, failure_of({ErrorKind::kInternal, error.what()}));
  }
}

void JobQueue::finish(Entry& entry, JobState state, std::optional<JobFailure> failure) {
  ServedJob job;
  {
    const std::lock_guard lock(mutex_);
    entry.job.state = state;
    entry.job.finished = std::chrono::system_clock::now();
    entry.job.failure = std::move(failure);
    entry.job.preview.reset();
    if (state == JobState::kCompleted) entry.job.progress.percent = 100;
    if (running_.get() == &entry) running_.reset();
    forget_under_lock();
    count_under_lock();
    job = entry.job;
  }
  if (metrics_ && job.started)
    metrics_->observe("weft_job_duration_seconds",
                      std::chrono::duration<double>(*job.finished - *job.started).count(),
                      {{"state", to_string(state)}});
  if (ended_) ended_(job);
}

void JobQueue::count_under_lock() {
  if (!metrics_) return;
  metrics_->set("weft_jobs_queued", static_cast<double>(queued_under_lock()));
  metrics_->set("weft_jobs_running", running_ ? 1 : 0);
}

void JobQueue::forget_under_lock() {
  const auto over = [](const EntryPtr& entry) { return is_over(entry->job.state); };
  for (auto count = std::ranges::count_if(jobs_, over);
       count > static_cast<std::ptrdiff_t>(limits_.history); --count)
    jobs_.erase(std::ranges::find_if(jobs_, over));
}

JobQueue::EntryPtr JobQueue::find_under_lock(const std::string& id) const {
  const auto found =
      std::ranges::find(jobs_, id, [](const EntryPtr& each) { return each->job.id; });
  return found == jobs_.end() ? nullptr : *found;
}

ServedJob JobQueue::copy_under_lock(const Entry& entry) const {
  ServedJob job = entry.job;
  if (job.state != JobState::kQueued) return job;
  for (const EntryPtr& each : jobs_) {
    job.depth += each->job.state == JobState::kQueued;
    if (each.get() == &entry) job.position = job.depth;
  }
  return job;
}

size_t JobQueue::queued_under_lock() const {
  return static_cast<size_t>(std::ranges::count(
      jobs_, JobState::kQueued, [](const EntryPtr& each) { return each->job.state; }));
}

}  // namespace weft
