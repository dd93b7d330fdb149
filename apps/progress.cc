#include "apps/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

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

double overall_percent(const Progress& progress) {
  struct Stage {
    const char* name;
    double begin, end;
  };
  constexpr Stage kStages[] = {{"load", 0, 4},     {"encode_text", 4, 8},    {"denoise", 8, 80},
                               {"decode", 80, 97}, {"encode_video", 97, 98}, {"write", 98, 99}};
  for (const Stage& stage : kStages)
    if (progress.stage == stage.name) {
      const double part = progress.total > 0 ? double(progress.step) / progress.total : 0;
      return stage.begin + (stage.end - stage.begin) * std::clamp(part, 0.0, 1.0);
    }
  return 0;
}

void ProgressPrinter::progress(const Progress& progress) {
  if (mode_ == ProgressMode::kNone) return;
  percent_ = std::max(percent_, overall_percent(progress));
  const Clock::time_point now = Clock::now();
  const bool new_stage = progress.stage != stage_;
  stage_ = progress.stage;
  if (mode_ == ProgressMode::kPlain && !new_stage && percent_ < printed_percent_ + 5 &&
      now - printed_at_ < std::chrono::seconds(10))
    return;
  printed_percent_ = percent_;
  printed_at_ = now;
  print(progress, percent_);
}

void ProgressPrinter::warning(const std::string& line) {
  std::fprintf(stderr, "%sweft: warning: %s\n", mode_ == ProgressMode::kBar ? "\n" : "",
               line.c_str());
}

void ProgressPrinter::finish() {
  if (mode_ == ProgressMode::kNone) return;
  Progress done;
  done.stage = "completed";
  print(done, 100);
  if (mode_ == ProgressMode::kBar) std::fputc('\n', stderr);
}

void ProgressPrinter::print(const Progress& progress, double percent) {
  if (mode_ == ProgressMode::kJson) {
    nlohmann::json event{{"event", "progress"},
                         {"job", job_},
                         {"stage", progress.stage},
                         {"step", progress.step},
                         {"total", progress.total},
                         {"percent", percent},
                         {"elapsed_s", progress.elapsed_seconds},
                         {"eta_s", progress.eta_seconds},
                         {"mem_bytes", {{"0", progress.memory_bytes}}}};
    if (progress.stage == "denoise") {
      event["sigma"] = progress.sigma;
      event["s_per_step"] = progress.seconds_per_step;
      if (progress.kept >= 0) event["checkpoint"] = progress.kept;
    }
    std::fprintf(stderr, "%s\n", event.dump().c_str());
    return;
  }
  std::string detail = progress.stage;
  if (progress.total > 1)
    detail += " " + std::to_string(progress.step) + "/" + std::to_string(progress.total);
  char numbers[96] = "";
  if (progress.stage == "denoise" && progress.seconds_per_step > 0)
    std::snprintf(numbers, sizeof numbers, "  sigma %.3f  %.2f s/step  %.0f s left", progress.sigma,
                  progress.seconds_per_step, progress.eta_seconds);
  detail += numbers;
  if (progress.stage == "denoise" && progress.kept >= 0)
    detail += "  checkpoint " + std::to_string(progress.kept);
  if (mode_ == ProgressMode::kBar) {
    constexpr int kWidth = 30;
    const int full = static_cast<int>(percent / 100 * kWidth);
    std::fprintf(stderr, "\r\033[K[%s%s] %3.0f %%  %s", std::string(full, '#').c_str(),
                 std::string(kWidth - full, '.').c_str(), percent, detail.c_str());
    std::fflush(stderr);
  } else {
    std::fprintf(stderr, "weft: %3.0f %%  %s\n", percent, detail.c_str());
  }
}

}  // namespace weft
