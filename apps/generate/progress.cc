#include "apps/generate/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/command_line/printable.h"
#include "apps/preview/preview_file.h"
#include "engine/job/stages.h"
#include "io/json.h"

namespace weft {

bool informative(const Flags& flags) {
  const std::string level = flags.text("log-level");
  return !flags.on("quiet") && (level == "info" || level == "debug" || flags.on("verbose"));
}

ProgressMode progress_mode(const Flags& flags) {
  const std::string mode = flags.text("progress");
  if (mode == "none" || flags.on("quiet") || (mode == "auto" && !informative(flags)))
    return ProgressMode::kNone;
  if (mode == "json") return ProgressMode::kJson;
  if (mode == "bar") return ProgressMode::kBar;
  if (mode == "plain") return ProgressMode::kPlain;
  return isatty(STDERR_FILENO) ? ProgressMode::kBar : ProgressMode::kPlain;
}

ProgressPrinter::ProgressPrinter(ProgressMode mode, std::string job, FILE* out,
                                 Clock::duration every)
    : mode_(mode), job_(std::move(job)), out_(out), every_(every) {
  if (mode_ != ProgressMode::kNone)
    ticker_ = std::jthread([this](const std::stop_token& stop) { tick(stop); });
}

ProgressPrinter::~ProgressPrinter() {
  if (mode_ == ProgressMode::kNone) return;
  ticker_.request_stop();
  ticker_.join();
  if (finished_ || last_.stage.empty()) return;
  if (mode_ == ProgressMode::kBar) std::fputc('\n', out_);
  if (mode_ != ProgressMode::kJson) return;
  const Json event{
      {"event", "stopped"}, {"job", job_}, {"stage", last_.stage}, {"percent", percent_}};
  std::fprintf(out_, "%s\n", event.dump().c_str());
}

void ProgressPrinter::progress(const Progress& progress) {
  if (mode_ == ProgressMode::kNone) return;
  const std::scoped_lock lock(mutex_);
  percent_ = std::max(percent_, overall_percent(progress));
  const Clock::time_point now = Clock::now();
  const bool new_stage = progress.stage != last_.stage;
  last_ = progress;
  heard_at_ = now;
  if (mode_ == ProgressMode::kPlain && !new_stage && percent_ < printed_percent_ + 5 &&
      now - printed_at_ < every_)
    return;
  print(progress, percent_);
}

void ProgressPrinter::preview(const Preview& preview) {
  if (preview_path_.empty()) return;
  try {
    write_preview(preview_path_, preview);
  } catch (const Error& error) {
    warning(std::string(error.what()) + "; there are no more previews");
    preview_path_.clear();
    return;
  }
  if (mode_ != ProgressMode::kJson) return;
  const std::scoped_lock lock(mutex_);
  const Json event{{"event", "preview"},     {"job", job_},
                   {"stage", "denoise"},     {"step", preview.step},
                   {"total", preview.total}, {"percent", percent_},
                   {"output", preview_path_}};
  std::fprintf(out_, "%s\n", event.dump().c_str());
  std::fflush(out_);
}

void ProgressPrinter::warning(const std::string& line) {
  const std::scoped_lock lock(mutex_);
  std::fprintf(out_, "%sweft: warning: %s\n", mode_ == ProgressMode::kBar ? "\n" : "",
               printable(line).c_str());
}

void ProgressPrinter::finish() {
  if (mode_ == ProgressMode::kNone) return;
  const std::scoped_lock lock(mutex_);
  finished_ = true;
  Progress done;
  done.stage = "completed";
  print(done, 100);
  if (mode_ == ProgressMode::kBar) std::fputc('\n', out_);
}

void ProgressPrinter::tick(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    stopping_.wait_for(lock, stop, every_, [] { return false; });
    const Clock::time_point now = Clock::now();
    if (stop.stop_requested() || finished_ || last_.stage.empty() || now - printed_at_ < every_)
      continue;
    Progress still = last_;
    const double waited = std::chrono::duration<double>(now - heard_at_).count();
    still.elapsed_seconds += waited;
    still.eta_seconds = std::max(0.0, still.eta_seconds - waited);
    still.first_frame_seconds = std::max(0.0, still.first_frame_seconds - waited);
    print(still, percent_);
  }
}

void ProgressPrinter::print(const Progress& progress, double percent) {
  printed_percent_ = percent;
  printed_at_ = Clock::now();
  if (mode_ == ProgressMode::kJson) {
    print_json(progress, percent);
    return;
  }
  std::string detail = progress.stage;
  if (progress.chunks > 1 && progress.stage != "completed")
    detail = "clip " + std::to_string(progress.chunk + 1) + "/" + std::to_string(progress.chunks) +
             "  " + detail;
  if (progress.total > 1)
    detail += " " + std::to_string(progress.step) + "/" + std::to_string(progress.total);
  char numbers[96] = "";
  const bool denoises = progress.stage == "denoise" && progress.seconds_per_step > 0;
  if (denoises && progress.segments > 0) {
    char first[48] = "";
    if (progress.first_frame_seconds > 0)
      std::snprintf(first, sizeof first, "first frame in %.0f s, ", progress.first_frame_seconds);
    std::snprintf(numbers, sizeof numbers, "  block %d/%d done  %slast in %.0f s",
                  progress.finished_segments, progress.segments, first, progress.eta_seconds);
  } else if (denoises)
    std::snprintf(numbers, sizeof numbers, "  sigma %.3f  %.2f s/step  %.0f s left", progress.sigma,
                  progress.seconds_per_step, progress.eta_seconds);
  else if (progress.elapsed_seconds >= 1)
    std::snprintf(numbers, sizeof numbers, "  %.0f s", progress.elapsed_seconds);
  detail += numbers;
  if (progress.pictures > 0) detail += "  " + std::to_string(progress.pictures) + " frames";
  if (progress.stage == "denoise" && progress.kept >= 0)
    detail += "  checkpoint " + std::to_string(progress.kept);
  if (mode_ == ProgressMode::kBar) {
    constexpr int kWidth = 30;
    const int full = static_cast<int>(percent / 100 * kWidth);
    std::fprintf(out_, "\r\033[K[%s%s] %3.0f %%  %s", std::string(full, '#').c_str(),
                 std::string(kWidth - full, '.').c_str(), percent, detail.c_str());
  } else {
    std::fprintf(out_, "weft: %3.0f %%  %s\n", percent, detail.c_str());
  }
  std::fflush(out_);
}

void ProgressPrinter::print_json(const Progress& progress, double percent) {
  Json event{{"event", "progress"},
             {"job", job_},
             {"stage", progress.stage},
             {"step", progress.step},
             {"total", progress.total},
             {"percent", percent},
             {"elapsed_s", progress.elapsed_seconds},
             {"eta_s", progress.eta_seconds},
             {"mem_bytes", {{"0", progress.memory_bytes}}}};
  if (progress.pictures > 0) event["frames"] = progress.pictures;
  if (progress.chunks > 1) event["clips"] = {{"done", progress.chunk}, {"total", progress.chunks}};
  if (progress.segments > 0) {
    event["blocks"] = {{"done", progress.finished_segments}, {"total", progress.segments}};
    if (progress.first_frame_seconds > 0) event["first_frame_eta_s"] = progress.first_frame_seconds;
  }
  if (progress.stage == "denoise") {
    event["sigma"] = progress.sigma;
    event["s_per_step"] = progress.seconds_per_step;
    if (progress.kept >= 0) event["checkpoint"] = progress.kept;
    if (progress.turn >= 0) event["turn"] = progress.turn;
  }
  std::fprintf(out_, "%s\n", event.dump().c_str());
  std::fflush(out_);
}

}  // namespace weft
