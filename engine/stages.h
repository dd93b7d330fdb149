#pragma once
// StageClock: which stage a job is in, how long each took, and the progress events it gives.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "engine/generator.h"

namespace weft {

class StageClock {
 public:
  // `memory` gives the bytes held now. `listener` may be null.
  StageClock(ProgressListener* listener, std::function<uint64_t()> memory);

  // Ends the stage before and begins `stage` of `total` steps.
  // `done` of them are an earlier run's.
  void enter(const std::string& stage, int total, int done = 0);
  void step(int done, double sigma = 0);
  void kept(int steps) { kept_ = steps; }
  // Runs `body` as a stage of its own inside the present one, whose time stands still meanwhile.
  void inside(const std::string& stage, int total, const std::function<void()>& body);
  void leave();

  std::vector<StageSeconds> seconds() const { return seconds_; }  // in order of first entry

 private:
  using Clock = std::chrono::steady_clock;
  struct Stage {
    std::string name;
    int done = 0, total = 0, first = 0;
    double sigma = 0, elapsed = 0;
    Clock::time_point since;
  };
  double elapsed() const;
  void pause();
  void report();

  ProgressListener* listener_;
  std::function<uint64_t()> memory_;
  Stage stage_;
  int kept_ = -1;
  std::vector<StageSeconds> seconds_;
};

}  // namespace weft
