#pragma once
// Delivery: the part of a job after its last step. It keeps the final latent, decodes it and writes
// the frames. With clips the latent comes in parts, and no rank has the whole of it.
#include <chrono>
#include <optional>
#include <string>

#include "engine/decoding/video_output.h"
#include "engine/denoising/denoiser.h"
#include "engine/memory/memory_meter.h"

namespace weft {

// A job, and what it uses of its rank.
struct DeliveredJob {
  const Rank& rank;
  const JobFacts& facts;
  const RunOptions& options;
  FrameSink* sink;
  StageClock& clock;
  MemoryMeter& meter;
  RunResult& result;
  std::chrono::steady_clock::time_point started;
  std::string record;  // Generator::job_record
};

// Every rank of the replica has one and calls the same functions.
class Delivery {
 public:
  explicit Delivery(DeliveredJob job) : job_(std::move(job)) {}

  // Keeps and decodes a whole final latent [C, F, H, W].
  void whole(const TensorView& latent);
  // The same in parts: first Job::finished, then Job::decode for one frame after the other.
  void keep(const Job::Channels& each);
  void decode(const TensorView& latent);
  // Waits until the sink has a whole file.
  void finish();

 private:
  bool keeps_file() const;
  void tell_file();
  void write_file(const TensorView& latent, const TensorParts& parts);

  DeliveredJob job_;
  std::optional<VideoOutput> output_;
};

}  // namespace weft
