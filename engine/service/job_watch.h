#pragma once
// JobWatch: the events of one job as one client hears them.
#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "engine/service/running_job.h"

namespace weft {

class JobWatch {
 public:
  JobWatch(std::string id, int64_t after, std::function<void(const JobEvent&)> heard)
      : id_(std::move(id)), last_(after), heard_(std::move(heard)) {}

  const std::string& id() const { return id_; }
  // Tells what is new: the store's events where its version is another one than before, and the
  // progress of the job if it runs here. Returns false once there is nothing more to tell.
  bool tell(const JobStore& store, int64_t version, const RunningJob* running);
  // Nothing is told from now on. Waits for a call of `heard` on another thread.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  void tell_events(const JobStore& store, bool runs_here);
  void tell_progress(const std::string& progress);

  const std::string id_;
  std::recursive_mutex mutex_;  // `heard` may close the watch
  int64_t last_;
  const std::function<void(const JobEvent&)> heard_;
  bool closed_ = false;
  int64_t version_ = -1;
  int preview_number_ = 0;
  std::string progress_{};
  Clock::time_point progress_at_{};
};

}  // namespace weft
