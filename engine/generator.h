#pragma once
// Generator: a model directory loaded once; requests in, frames out through a sink. In a replica of
// several ranks each has one, all run the same requests in the same order, and the root's gives the
// frames.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint.h"
#include "engine/planner.h"
#include "engine/replica.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "io/video.h"
#include "kernels/device_graph.h"
#include "kernels/stream.h"
#include "models/streamed_weights.h"

namespace weft {

// Stages by the names users see: load, encode_text, denoise, decode, encode_video, write.
struct Progress {
  std::string stage;
  int step = 0, total = 0;      // step of total; 0 of n when the stage starts
  double sigma = 0;             // denoise
  double seconds_per_step = 0;  // running mean
  double elapsed_seconds = 0;   // since the stage began
  double eta_seconds = 0;       // of the stage; 0 where unknown
  uint64_t memory_bytes = 0;    // tensors and arena held now
  int kept = -1;                // denoise: steps in the newest checkpoint; -1: none
};

struct ProgressListener {
  virtual ~ProgressListener() = default;
  virtual void progress(const Progress& progress) = 0;
  // What does not end the job, in one line.
  virtual void warning(const std::string&) {}
};

// Sees a job's intermediate tensors under the golden cases' names: prompt_embeds [T, d],
// latents_initial [C, F, H, W], latents_final (normalised), video [3, F, H, W] in [0, 1]. All f32.
// Give one to every rank of a replica or to none: video is gathered whole.
struct PipelineTap {
  virtual ~PipelineTap() = default;
  virtual void tap(const char* name, const TensorView& value) = 0;
};

// Whether memory is planned for copies of a job between two steps.
enum class Keeping : uint8_t { kNothing, kCheckpoints };

struct GeneratorOptions {
  Device device{};                // where everything is computed
  DType dtype = DType::kF32;      // compute dtype of text encoder and transformer
  DType vae_dtype = DType::kF32;  // decoding in f32 is what the models were published with
  // Of the transformer's blocks. Error(kUsage) for 8-bit weights where a layout splits the width.
  WeightFormat weights = WeightFormat::kCompute;
  // Of the transformer's tokens over tokens. Error(kUsage) where the device or the head's size has
  // no attention in 8 bits.
  AttentionFormat attention = AttentionFormat::kCompute;
  // Blocks of a transformer on the device at once, the others pass through (WanLoad::resident); 0:
  // all. Error(kUsage) on a CPU.
  int resident_blocks = 0;
  Graphs graphs = Graphs::kRecord;  // of a device's forwards
  int threads = 0;                  // 0: all
  Determinism determinism = Determinism::kFast;
  uint64_t memory_limit = 0;  // bytes, of all ranks that share it; 0: what the machine has free now
  const Ops* ops = nullptr;   // null: cpu_ops(). metered_ops() plans for other machines:
                              // memory_limit is not held to what this one has
  int memory_sharers = 1;     // ranks that share the memory of this machine or device
  // Beside a device: the host's memory, as memory_limit and memory_sharers are the device's.
  uint64_t host_memory_limit = 0;
  int host_sharers = 1;
  // A device that plans are for in place of `device`, which is a CPU then: what runs computes
  // nothing (metered_ops()). memory_limit 0: what such a device has.
  std::optional<DeviceTraits> planned{};
  Keeping keeping = Keeping::kNothing;  // kCheckpoints where runs have a checkpoint_path
};

struct RunOptions {
  // Where the latents stand before decoding starts (safetensors); empty: they are written only when
  // a later stage fails, to `latents_on_failure`.
  std::string latents_path;
  std::string latents_on_failure;
  ProgressListener* listener = nullptr;
  PipelineTap* tap = nullptr;
  // Read between steps; true ends with Error(kStopped), where a last checkpoint is written. While
  // decoding it is heeded where more than kFinishSeconds (decode.h) of work are left. The root's
  // flag decides; every rank has one, or none has: each step's word costs the root 8 bytes to every
  // other rank.
  const std::atomic<bool>* stop = nullptr;
  // The root's: where step checkpoints go (two generations, removed by the caller; empty: none),
  // at least how many seconds lie between two, and what they tell beside the job's facts. The copy
  // that is written behind the job's back takes up to four latents of memory that no plan counts.
  std::string checkpoint_path{};
  double checkpoint_seconds = 60;
  std::map<std::string, std::string> notes{};
  std::shared_ptr<Checkpoint> resume{};  // the root's: what to go on from; its tensors are taken
};

struct StageSeconds {
  std::string stage;
  double seconds = 0;
};

struct RunResult {
  Request request;                   // as resolved
  std::vector<StageSeconds> stages;  // in order
  double seconds = 0;
  int frames = 0;
  std::string framehash;           // SHA-256 over the RGB frames handed to the sink
  std::string signature;           // SHA-256 over the final latents' f32 bytes
  uint64_t arena_high_water = 0;   // of the whole job
  uint64_t decode_high_water = 0;  // of the decode stage
  uint64_t tensor_bytes_peak = 0;  // weights, latents, histories: all but the arena
  // As MemoryPlan predicts it: tensors and arena together, of a device with the scratch of ops
  // and what commits round up.
  uint64_t memory_high_water = 0;
  Streaming streaming{};     // of forwards whose weights passed through the device
  std::string latents_path;  // where kept, else empty
  int steps = 0;
  int resumed_at = 0;             // steps that an earlier run had done
  double earlier_seconds = 0;     // and what it took for them
  int checkpoints = 0;            // handed to the writer
  double checkpoint_seconds = 0;  // that the job stood still for them
};

class Generator {
 public:
  // Reads every configuration and the tensor headers; loads weights when first used.
  // Error(kModel) for a directory that cannot be served.
  Generator(const std::string& model_directory, const GeneratorOptions& options,
            Replica replica = {});
  ~Generator();

  const DefaultSettings& defaults() const;
  const ModelLimits& limits() const;
  const GeneratorOptions& options() const;
  SamplerConfig sampler_config() const;  // scheduler_config.json
  int64_t tokens(const Request& request) const;
  // What a resolved request can be split into, by itself.
  LayoutLimits layout_limits(const Request& request) const;
  const Layout& layout() const;  // of the replica
  // "wan2.1-t2v-1.3b", for run headers and metadata.
  std::string model_name() const;
  // What a resolved request's frames depend on, but for the machine and the number of threads.
  JobFacts job_facts(const Request& request) const;
  std::string weights_hash() const;  // SHA-256 over the header hashes of all components

  // The end of a prompt that the text encoder does not read; nullopt where it reads all of it.
  std::optional<PromptCut> prompt_cut(const std::string& prompt) const;

  // Open fields filled, then validated: Error(kUsage).
  Request resolve(const Request& request) const;
  // Pure: loads nothing. `request` is resolved.
  MemoryPlan plan(const Request& request) const;

  // What the root says, on every rank.
  bool agreed(bool word);

  // One job. Error(kMemory) before anything is loaded where the plan does not fit. `sink` gets the
  // frames on a thread of its own while the decoder runs; null: frames are only hashed. Sink and
  // listener are the root's.
  RunResult run(const Request& request, FrameSink* sink, const RunOptions& options = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
