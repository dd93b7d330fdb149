#include "engine/stages.h"

#include <algorithm>

namespace weft {

StageClock::StageClock(ProgressListener* listener, std::function<uint64_t()> memory)
    : listener_(listener), memory_(std::move(memory)) {}

double StageClock::elapsed() const {
  return stage_.elapsed + std::chrono::duration<double>(Clock::now() - stage_.since).count();
}

// Books the time since the stage was entered or went on.
void StageClock::pause() {
  if (stage_.name.empty()) return;
  const double since = elapsed() - stage_.elapsed;
  stage_.elapsed += since;
  const auto same = [&](const StageSeconds& entry) { return entry.stage == stage_.name; };
  const auto entry = std::find_if(seconds_.begin(), seconds_.end(), same);
  if (entry == seconds_.end()) {
    seconds_.push_back({stage_.name, since});
  } else {
    entry->seconds += since;
  }
}

void StageClock::enter(const std::string& stage, int total, int done) {
  pause();
  stage_ = {.name = stage,
            .done = done,
            .total = total,
            .first = done,
            .sigma = 0,
            .elapsed = 0,
            .since = Clock::now()};
  report();
}

void StageClock::step(int done, double sigma) {
  stage_.done = done;
  stage_.sigma = sigma;
  report();
}

void StageClock::inside(const std::string& stage, int total, const std::function<void()>& body) {
  pause();
  const Stage outer = stage_;
  stage_ = {.name = stage,
            .done = 0,
            .total = total,
            .first = 0,
            .sigma = 0,
            .elapsed = 0,
            .since = Clock::now()};
  report();
  body();
  stage_.done = total;
  report();
  pause();
  stage_ = outer;
  stage_.since = Clock::now();
}

void StageClock::leave() {
  pause();
  stage_ = {};
}

void StageClock::report() {
  if (!listener_) return;
  Progress progress;
  progress.stage = stage_.name;
  progress.step = stage_.done;
  progress.total = stage_.total;
  progress.sigma = stage_.sigma;
  progress.elapsed_seconds = elapsed();
  progress.kept = kept_;
  if (stage_.done > stage_.first) {
    progress.seconds_per_step = progress.elapsed_seconds / (stage_.done - stage_.first);
    progress.eta_seconds = progress.seconds_per_step * std::max(stage_.total - stage_.done, 0);
  }
  progress.memory_bytes = memory_();
  listener_->progress(progress);
}

}  // namespace weft
