#pragma once
// Checkpoint: a job between two steps, as a file: what it takes to go on as if nothing had
// happened. Latents that wait for decoding are one of them, too: with no step to come.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/tensor.h"

namespace weft {

// What a job's result depends on, by name: jobs with the same facts make the same frames.
using JobFacts = std::map<std::string, std::string>;
std::string job_hash(const JobFacts& facts);  // SHA-256, hex
// "seed is 5 there and 6 here; ..."; empty where the two agree.
std::string difference(const JobFacts& there, const JobFacts& here);

struct Checkpoint {
  std::string path{};                        // where it was read from
  JobFacts facts{};                          // of the job
  std::map<std::string, std::string> notes;  // who made it and how; not compared
  int step = 0, total = 0;                   // steps done, of all
  double seconds = 0;                        // the job has taken so far
  std::string text_hash{};                   // SHA-256 of the prompts' embeddings; empty: no step
  std::string signature{};                   // SHA-256 of final latents; empty before the last step
  Tensor latent{};                           // [C, F, H, W] f32, as kept between steps
  std::vector<std::pair<std::string, Tensor>> history{};  // Sampler::history, f32 [count]

  bool final() const { return step == total; }
};

// One safetensors file: "latent.clip.0" ("latents" where no step is to come), the solver's tensors,
// and in its metadata everything else with a SHA-256 of every tensor and of the metadata. `latent`
// stands for checkpoint.latent. Error(kOutput).
void write_checkpoint(const std::string& path, const Checkpoint& checkpoint,
                      const TensorView& latent);
// Error(kModel) that names the fault where the file is not whole.
Checkpoint read_checkpoint(const std::string& path);

// The generation before the one at `path`: a.checkpoint.safetensors ->
// a.checkpoint.old.safetensors.
std::string older_checkpoint(const std::string& path);
// Both generations, and what a killed job left of a third.
void remove_checkpoints(const std::string& path);

// Writes checkpoints on a thread of its own, two generations of them, one at a time. A failed write
// costs the job nothing: it is told, and the next one tries again.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::string path) : path_(std::move(path)) {}
  ~CheckpointWriter() { wait(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  bool idle() const { return !busy_; }
  void wait();                        // until idle
  void write(Checkpoint checkpoint);  // waits until idle, then returns at once
  int kept() const { return kept_; }  // steps done in the newest whole file; -1: none
  // What the last write failed with, once; empty where it did not. Only where idle.
  std::string take_error();

 private:
  const std::string path_;
  std::thread thread_;
  std::atomic<bool> busy_{false};
  std::atomic<int> kept_{-1};
  std::string error_;
};

}  // namespace weft
