#pragma once
// Keeper: decides between two steps, on the root, whether a job stops and whether it is kept, and
// writes its checkpoints.
#include <chrono>

#include "engine/checkpoint.h"
#include "engine/executor.h"
#include "engine/generator.h"

namespace weft {

class Keeper {
 public:
  // `job`: facts, notes, total, hash of the text. `first`: steps done when it starts;
  // `earlier_seconds`: what they took.
  Keeper(const RunOptions& options, Checkpoint job, int first, double earlier_seconds);
  // Waits for the writer.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  Boundary decide(int done);
  void keep(int done, Snapshot snapshot);
  // Waits for the writer, tells its error and books what was kept.
  void finish(RunResult& result);
  int kept() const { return writer_ ? writer_->kept() : -1; }

 private:
  using Clock = std::chrono::steady_clock;
  void tell_error();

  const RunOptions& options_;
  Checkpoint job_;
  int first_;
  double earlier_seconds_;
  std::unique_ptr<CheckpointWriter> writer_;
  Clock::time_point begun_ = Clock::now(), last_ = begun_, asked_{};
  std::string told_;
  int count_ = 0;
  double seconds_ = 0;
};

}  // namespace weft
