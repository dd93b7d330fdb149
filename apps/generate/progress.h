#pragma once
// Progress on standard error: a bar on a terminal, lines every 10 s or 5 %, JSON events, or
// nothing.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "apps/command_line/flags.h"
#include "engine/runner/runner_settings.h"

namespace weft {

enum class ProgressMode : uint8_t { kBar, kPlain, kJson, kNone };

// True where --log-level and --quiet let informative lines through.
bool informative(const Flags& flags);

// Reads --progress; auto is a bar on a terminal, else lines. --quiet prints nothing.
ProgressMode progress_mode(const Flags& flags);

// Prints when progress() is called, and by itself where a step takes long. Where it is destroyed
// before finish(), it reports that the job stopped.
class ProgressPrinter final : public DrawingWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `every` is the longest time without a line.
  ProgressPrinter(ProgressMode mode, std::string job, FILE* out = stderr,
                  Clock::duration every = std::chrono::seconds(10));
  ~ProgressPrinter() override;
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void progress(const Progress& progress) override;
  // Writes the preview to the file of show_previews(), if there is one. A file that cannot be
  // written is a warning, and no further preview is tried.
  void preview(const Preview& preview) override;
  void show_previews(const std::string& path) { preview_path_ = path; }
  void warning(const std::string& line) override;
  void finish() override;  // 100 %: the job is complete

 private:
  void tick(const std::stop_token& stop);
  void print(const Progress& progress, double percent);
  void print_json(const Progress& progress, double percent);

  const ProgressMode mode_;
  const std::string job_;
  FILE* const out_;
  const Clock::duration every_;
  std::string preview_path_;  // of the thread of the job
  std::mutex mutex_;          // guards the members below
  std::condition_variable_any stopping_;
  Progress last_;
  Clock::time_point heard_at_{}, printed_at_{};
  double percent_ = 0;  // never falls
  double printed_percent_ = -100;
  bool finished_ = false;
  std::jthread ticker_;  // declared last, because it uses the members above
};

}  // namespace weft
