#include "engine/service/running_job.h"

#include <algorithm>

#include "engine/job/stages.h"
#include "engine/service/job_failure.h"

namespace weft {
namespace {

constexpr size_t kMostWarnings = 16;
constexpr double kMostBeforeTheEnd = 99;

}  // namespace

void RunningJob::progress(const Progress& progress) {
  const std::lock_guard lock(mutex_);
  shown_.percent = std::max(shown_.percent, std::min(overall_percent(progress), kMostBeforeTheEnd));
  shown_.progress = progress;
  live_.progress = json(shown_);
}

bool RunningJob::wants_preview(int step, int total) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(wishes_, [&](const auto& weak) {
    const auto wish = weak.lock();
    return wish && wish->due(step, total);
  });
}

void RunningJob::add_wish(const std::shared_ptr<PreviewWish>& wish) {
  const std::lock_guard lock(mutex_);
  std::erase_if(wishes_, [](const auto& old) { return old.expired(); });
  wishes_.push_back(wish);
}

int RunningJob::wanted_previews() const {
  const std::lock_guard lock(mutex_);
  int most = 0;
  for (const auto& weak : wishes_)
    if (const auto wish = weak.lock()) most = std::max(most, wish->count());
  return most;
}

void RunningJob::preview(const Preview& preview) {
  auto png = std::make_shared<const std::string>(preview_png(preview));
  const std::lock_guard lock(mutex_);
  for (const auto& weak : wishes_)
    if (const auto wish = weak.lock()) wish->offer(preview.step, preview.total, png);
  ++live_.preview_number;
  live_.preview_png = std::move(png);
  live_.preview_step = preview.step;
  live_.preview_steps = preview.total;
}

void RunningJob::warning(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (warnings_.size() == kMostWarnings) return;
  warnings_.push_back(without_folders(line));
  unwritten_.push_back(warnings_.back());
}

LiveJob RunningJob::live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

std::string RunningJob::finished_progress() const {
  const std::lock_guard lock(mutex_);
  return json({.percent = 100, .progress = shown_.progress});
}

std::string RunningJob::warnings() const {
  const std::lock_guard lock(mutex_);
  return warnings_.empty() ? "" : Json(warnings_).dump();
}

void RunningJob::write_log(JobStore& store) {
  const std::lock_guard one_at_a_time(writing_);
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(mutex_);
    lines.swap(unwritten_);
  }
  for (const std::string& line : lines)
    store.add_event(claim_, "log", Json{{"level", "warning"}, {"message", line}}.dump());
}

std::string RunningJob::json(const Shown& shown) {
  const Progress& progress = shown.progress;
  return Json{{"percent", shown.percent},
              {"stage", progress.stage},
              {"step", progress.step},
              {"steps", progress.total},
              {"s_per_step", progress.seconds_per_step},
              {"eta_s", progress.eta_seconds}}
      .dump();
}

}  // namespace weft
