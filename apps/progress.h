#pragma once
// Progress on standard error: a bar on a terminal, lines every 10 s or 5 %, JSON events, or
// nothing.
#include <chrono>
#include <string>

#include "apps/flags.h"
#include "engine/generator.h"

namespace weft {

enum class ProgressMode : uint8_t { kBar, kPlain, kJson, kNone };

// True where --log-level and --quiet let informative lines through.
bool informative(const Flags& flags);

// --progress with auto resolved: a bar on a terminal, else lines; nothing with --quiet.
ProgressMode progress_mode(const Flags& flags);

class ProgressPrinter final : public ProgressListener {
 public:
  ProgressPrinter(ProgressMode mode, std::string job) : mode_(mode), job_(std::move(job)) {}
  void progress(const Progress& progress) override;
  void warning(const std::string& line) override;
  void finish();  // 100 %: the job is complete

 private:
  void print(const Progress& progress, double percent);

  using Clock = std::chrono::steady_clock;
  ProgressMode mode_;
  std::string job_;
  std::string stage_;
  double percent_ = 0;  // never falls
  double printed_percent_ = -100;
  Clock::time_point printed_at_{};
};

// The job's percentage: stages weigh what they cost on a CPU; below 100 until finish().
double overall_percent(const Progress& progress);

}  // namespace weft
