#pragma once
// CheckpointPolicy: runs on the root between two steps. It decides whether the job stops and
// whether a checkpoint is written, and writes the checkpoints.
#include <chrono>
#include <functional>

#include "engine/job/checkpoint.h"
#include "engine/job/options.h"
#include "engine/latents/job.h"

namespace weft {

// Returns what the checkpoints of a job with this record say of it. Warns the listener where the
// prompts of a resumed job have another hash.
Checkpoint describe_job(const RunOptions& options, std::string record, int total,
                        std::string text_hash);

class CheckpointPolicy {
 public:
  // `job`, which must outlive the object, gives record, notes, total and the hash of the text.
  // `first` is the number of steps done when the job starts, `earlier_seconds` the time that they
  // took. Keeps none, with a warning, where `why_not` is a reason, and none after the steps for
  // which `goes_on` is false.
  CheckpointPolicy(const RunOptions& options, const Checkpoint& job, int first,
                   double earlier_seconds, const std::string& why_not = "",
                   std::function<bool(int done)> goes_on = {});
  // Waits for the writer.
  ~CheckpointPolicy();
  CheckpointPolicy(const CheckpointPolicy&) = delete;
  CheckpointPolicy& operator=(const CheckpointPolicy&) = delete;

  // A checkpoint that is not `timed` is written however long ago the last one was.
  StepAction decide(int done, bool timed = true);
  // `written` is as in Checkpoint.
  void keep(int done, Snapshot snapshot, std::map<std::string, std::string> written = {});
  // Waits for the writer, reports its error and stores the checkpoint counts in `result`.
  void finish(RunResult& result);
  bool keeps_any() const { return writer_ != nullptr; }
  int kept() const { return writer_ ? writer_->kept() : -1; }

 private:
  using Clock = std::chrono::steady_clock;
  void tell_error();

  const RunOptions& options_;
  const Checkpoint& job_;
  int first_;
  double earlier_seconds_;
  std::function<bool(int done)> goes_on_;
  std::unique_ptr<CheckpointWriter> writer_;
  Clock::time_point begun_ = Clock::now(), last_ = begun_, asked_{};
  std::string told_;
  int count_ = 0;
  double seconds_ = 0;
};

}  // namespace weft
