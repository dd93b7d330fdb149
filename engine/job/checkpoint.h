#pragma once
// Checkpoint: the state of a job between two denoising steps, as a file. A job that resumes from it
// makes the same frames as one that never stopped. Final latents that wait for decoding are stored
// as a checkpoint with no steps left.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/weights/tensor_file.h"
#include "kernels/tensor.h"

namespace weft {

struct Checkpoint {
  std::string path{};                        // the file it was read from
  std::string job{};                         // the job's record (job_spec.h)
  std::map<std::string, std::string> notes;  // who made it and how; not compared
  int step = 0, total = 0;                   // steps done; steps of the job (turns of the queue)
  double seconds = 0;                        // time that the job has taken so far
  std::string text_hash{};                   // SHA-256 of the prompts' embeddings; empty: no step
  std::string signature{};                   // SHA-256 of final latents; empty before the last step
  // [C, F, H, W] f32, as kept between steps; of the queue QueuePlanConfig::kept_blocks()
  Tensor latent{};
  std::vector<std::pair<std::string, Tensor>> history{};  // Sampler::history, f32 [count]
  // The queue's facts of the frames that are written already, by name. The last latent frames of
  // these are a tensor of `history`.
  std::map<std::string, std::string> written{};

  bool final() const { return step == total; }
};

// Writes one safetensors file. It holds the tensor "latent.clip.0" ("latents" where no step is
// left) and the solver's history. Its metadata holds everything else, a SHA-256 of every tensor and
// one of the metadata. `latent` is written in place of checkpoint.latent; where it has no data, the
// final latent is written from `parts`, and checkpoint.signature is its SHA-256. Throws
// Error(kOutput).
void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const TensorView& latent, const TensorParts& parts = {});
// Throws Error(kModel) with the reason where the file is incomplete or damaged.
Checkpoint read_checkpoint(const std::string& path);

// The name under which the previous checkpoint is kept: a.checkpoint.safetensors ->
// a.checkpoint.old.safetensors.
std::string older_checkpoint(const std::string& path);
// Removes both checkpoints, and the unfinished part file that a killed job may have left.
void remove_checkpoints(const std::string& path);

// Writes checkpoints on a background thread, one at a time, and keeps the newest two. A failed
// write does not stop the job: the error is reported and the next write tries again.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string path) : path_(std::move(path)) {}
  ~CheckpointWriter() { wait(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  bool idle() const { return !busy_; }
  void wait();                        // returns when idle
  void write(Checkpoint checkpoint);  // waits until idle, then writes in the background
  int kept() const { return kept_; }  // steps done in the newest complete file; -1: none
  // Returns the error of the last write once; empty where it succeeded. Call it only while idle.
  std::string take_error();

 private:
  const std::string path_;
  std::thread thread_;
  std::atomic<bool> busy_{false};
  std::atomic<int> kept_{-1};
  std::string error_;
};

}  // namespace weft
