#include "engine/generation/checkpoint_policy.h"

namespace weft {
namespace {

double between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

Checkpoint describe_job(const RunOptions& options, std::string record, int total,
                        std::string text_hash) {
  Checkpoint job;
  job.job = std::move(record);
  job.notes = options.notes;
  job.total = total;
  job.text_hash = std::move(text_hash);
  if (options.resume && options.resume->text_hash != job.text_hash && options.listener)
    options.listener->warning("the prompt is encoded otherwise than when " + options.resume->path +
                              " was written: the frames may differ from an uninterrupted run's");
  return job;
}

CheckpointPolicy::CheckpointPolicy(const RunOptions& options, const Checkpoint& job, int first,
                                   double earlier_seconds, const std::string& why_not,
                                   std::function<bool(int done)> goes_on)
    : options_(options),
      job_(job),
      first_(first),
      earlier_seconds_(earlier_seconds),
      goes_on_(std::move(goes_on)) {
  CHECK(options.checkpoint_path.empty() || options.stop,
        "checkpoints need a stop flag on every rank");
  if (options.checkpoint_path.empty()) return;
  if (why_not.empty())
    writer_ = std::make_unique<CheckpointWriter>(options.checkpoint_path);
  else if (options.listener)
    options.listener->warning("a job that is stopped begins anew: " + why_not);
}

CheckpointPolicy::~CheckpointPolicy() = default;

StepAction CheckpointPolicy::decide(int done, bool timed) {
  const bool stop = options_.stop && options_.stop->load();
  if (!writer_ || done <= first_ || (goes_on_ && !goes_on_(done)))
    return stop ? StepAction::kStop : StepAction::kContinue;
  tell_error();
  asked_ = Clock::now();
  if (stop) return StepAction::kKeepAndStop;
  // While the previous checkpoint is still being written this one is skipped, except with an
  // interval of 0 seconds: then the job waits for the disk.
  const bool due = !timed || options_.checkpoint_seconds == 0 ||
                   (between(last_, asked_) >= options_.checkpoint_seconds && writer_->idle());
  return due ? StepAction::kKeep : StepAction::kContinue;
}

void CheckpointPolicy::keep(int done, Snapshot snapshot,
                            std::map<std::string, std::string> written) {
  writer_->wait();
  tell_error();
  last_ = Clock::now();
  Checkpoint checkpoint;
  checkpoint.job = job_.job;
  checkpoint.notes = job_.notes;
  checkpoint.step = done;
  checkpoint.total = job_.total;
  checkpoint.seconds = earlier_seconds_ + between(begun_, last_);
  checkpoint.text_hash = job_.text_hash;
  checkpoint.latent = std::move(snapshot.latent);
  checkpoint.history = std::move(snapshot.history);
  checkpoint.written = std::move(written);
  writer_->write(std::move(checkpoint));
  if (options_.checkpoint_seconds == 0) writer_->wait();  // so a kill loses less than one step
  ++count_;
  seconds_ += between(asked_, Clock::now());
}

void CheckpointPolicy::tell_error() {
  if (!writer_->idle()) return;
  const std::string error = writer_->take_error();
  if (error.empty() || error == told_) return;
  told_ = error;
  if (options_.listener)
    options_.listener->warning("no checkpoint was written, the job goes on: " + error);
}

void CheckpointPolicy::finish(RunResult& result) {
  result.checkpoints = count_;
  result.checkpoint_seconds = seconds_;
  if (!writer_) return;
  writer_->wait();
  tell_error();
}

}  // namespace weft
