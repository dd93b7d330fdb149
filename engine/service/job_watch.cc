#include "engine/service/job_watch.h"

#include "io/json.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kBetweenProgress{250};

}  // namespace

bool JobWatch::tell(const JobStore& store, int64_t version, const RunningJob* running) {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  if (version != version_) tell_events(store, running != nullptr);
  version_ = version;
  if (!running || closed_) return !closed_;
  const LiveJob live = running->live();
  tell_progress(live.progress);
  if (live.preview_number > preview_number_ && !closed_) {
    preview_number_ = live.preview_number;
    heard_({.number = 0,
            .type = "preview",
            .data = Json{{"step", live.preview_step}, {"steps", live.preview_steps}}.dump()});
  }
  return !closed_;
}

void JobWatch::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void JobWatch::tell_events(const JobStore& store, bool runs_here) {
  // The job is read before its events, so one that is over has all of them.
  const std::optional<StoredJob> stored = store.find(id_);
  const std::vector<JobEvent> events = store.events(id_, last_);
  for (const JobEvent& event : events) {
    last_ = event.number;
    heard_(event);
    if (event.type == "end") closed_ = true;
    if (closed_) return;
  }
  if (events.empty() && (!stored || is_over(stored->state))) {
    heard_({.number = 0, .type = "end", .data = "{}"});
    closed_ = true;
  } else if (stored && stored->state == JobState::kRunning && !runs_here) {
    tell_progress(stored->progress);
  }
}

void JobWatch::tell_progress(const std::string& progress) {
  const Clock::time_point now = Clock::now();
  if (progress.empty() || progress == progress_ || now < progress_at_ + kBetweenProgress) return;
  progress_ = progress;
  progress_at_ = now;
  heard_({.number = 0, .type = "progress", .data = progress});
}

}  // namespace weft
