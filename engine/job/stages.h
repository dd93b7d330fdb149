#pragma once
// StageClock: tracks the stage a job is in and the time each stage took, sends progress events, and
// opens the stages' zones in the thread's meter.
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "engine/job/options.h"
#include "kernels/zone.h"

namespace weft {

// The job's percentage, with stages weighted by their usual time on a CPU; below 100.
double overall_percent(const Progress& progress);

class StageClock {
 public:
  // `memory` returns the bytes held now. `listener` may be null.
  StageClock(ProgressListener* listener, std::function<uint64_t()> memory);
  ~StageClock() { leave(); }
  StageClock(const StageClock&) = delete;
  StageClock& operator=(const StageClock&) = delete;

  // Ends the current stage and begins `stage`, which has `total` steps. An earlier run did `done`
  // of them.
  void enter(Zone stage, int total, int done = 0);
  void step(int done, double sigma = 0);
  void kept(int steps) { kept_ = steps; }
  // A queue is in turn `turn`, and so many of its segments are done. The first is done after step
  // `first` of this stage.
  void segments(int turn, int done, int total, int first) {
    turn_ = turn;
    finished_segments_ = done;
    segments_ = total;
    first_block_step_ = first;
  }
  // The stages from now on are those of chunk `chunk` of `chunks`.
  void chunk(int chunk, int chunks) {
    chunk_ = chunk;
    chunks_ = chunks;
  }
  // Runs `body` as a stage of its own inside the current one. The current stage's clock is paused
  // meanwhile.
  void inside(Zone stage, int total, const std::function<void()>& body);
  // The same for a stage that takes turns with the steps of the current one (frames are decoded
  // while later ones are denoised): progress events stay those of the current stage. So the
  // seconds of all stages still add up to the time that passed.
  void beside(Zone stage, const std::function<void()>& body);
  // So many latent frames have been decoded, to so many pictures: a step of the stage `decode`. All
  // later events say how many pictures there are.
  void decoded(int latent_frames, int64_t pictures);
  void leave();

  std::vector<StageSeconds> seconds() const { return seconds_; }  // in order of first entry

 private:
  using Clock = std::chrono::steady_clock;
  struct Stage {
    Zone zone = Zone::kCount;  // none
    int done = 0, total = 0, first = 0;
    bool silent = false;  // beside another stage
    double sigma = 0, elapsed = 0;
    Clock::time_point since;
  };
  void begin(Zone stage, int total, int done);
  void nested(Zone stage, int total, bool silent, const std::function<void()>& body);
  double elapsed() const;
  void pause();
  void report();

  ProgressListener* listener_;
  std::function<uint64_t()> memory_;
  Stage stage_;
  int kept_ = -1, turn_ = -1;
  int64_t pictures_ = 0;
  int finished_segments_ = 0, segments_ = 0, first_block_step_ = 0;
  int chunk_ = 0, chunks_ = 1;
  std::vector<StageSeconds> seconds_;
};

}  // namespace weft
