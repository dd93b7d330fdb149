#pragma once
// JobQueue: the jobs of a server, drawn one after the other on the thread that calls work(). They
// live in memory. Everything may be called from any thread.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/serve/jobs/job.h"
#include "apps/serve/metrics.h"
#include "engine/generation/generator.h"

namespace weft {

// Draws a job on the calling thread. It throws Error, of the kind kStopped where it ended because
// `stop` became true.
using DrawJob = std::function<JobResult(const Drawing& drawing, ProgressListener& listener,
                                        const std::atomic<bool>& stop)>;

struct JobLimits {
  size_t queued = 64;     // further ones are refused
  size_t history = 1000;  // jobs that are over; the oldest ones are forgotten
};

enum class JobAnswer {
  kDone,
  kFull,      // as many jobs wait as may
  kDraining,  // the server takes no more jobs
  kUnknown,   // there is no such job
  kOver,      // the job has completed or failed
  kActive,    // the job waits or runs
};

class JobQueue {
 public:
  // `ended` is called after every job's end, on the thread of work() or of the call that ended the
  // job. It may be absent, and `metrics` null.
  explicit JobQueue(JobLimits limits = {}, Metrics* metrics = nullptr,
                    std::function<void(const ServedJob&)> ended = nullptr);

  JobAnswer add(ServedJob job);             // kDone, kFull or kDraining
  JobAnswer cancel(const std::string& id);  // kDone (also where it is cancelled), kUnknown, kOver
  JobAnswer remove(const std::string& id);  // kDone, kUnknown, kActive
  std::optional<ServedJob> find(const std::string& id) const;
  // The newest jobs first, from the one older than `after` on; "" is from the newest on. nullopt
  // where there is no job `after`.
  struct Page {
    std::vector<ServedJob> jobs;
    bool has_more = false;
  };
  std::optional<Page> newest(size_t limit, const std::string& after) const;

  // Runs jobs as they come. Returns when the queue was drained.
  void work(const DrawJob& run);
  // Takes no more jobs and cancels the queued ones. The running one goes on.
  void drain();
  // Stops the running job of a draining queue, which becomes cancelled.
  void stop_running();

 private:
  struct Entry {
    ServedJob job;
    std::atomic<bool> stop{false};
    bool cancelled = false;  // by a client
  };
  using EntryPtr = std::shared_ptr<Entry>;
  class Listener;

  EntryPtr next();
  void run_one(Entry& entry, const DrawJob& run);
  void finish(Entry& entry, JobState state, std::optional<JobFailure> failure = std::nullopt);
  void count_under_lock();
  void forget_under_lock();
  EntryPtr find_under_lock(const std::string& id) const;
  ServedJob copy_under_lock(const Entry& entry) const;
  size_t queued_under_lock() const;

  const JobLimits limits_;
  Metrics* const metrics_;
  const std::function<void(const ServedJob&)> ended_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<EntryPtr> jobs_;  // in the order in which they came
  EntryPtr running_;
  bool draining_ = false;
};

}  // namespace weft
