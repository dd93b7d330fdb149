#pragma once
// The options of jobs and of their runs, who watches a run, and its result.
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/job/checkpoint.h"
#include "engine/job/request.h"
#include "engine/parts/residency.h"
#include "engine/preview/preview.h"
#include "kernels/device_graph.h"
#include "kernels/stream.h"
#include "models/offload/weight_offload.h"
#include "models/transformer.h"

namespace weft {

// Progress of a stage. Users see these stage names: load, encode_text, encode_audio, encode_image,
// denoise, decode, encode_video, write.
struct Progress {
  std::string stage;
  int step = 0, total = 0;      // step of total; 0 of n when the stage starts
  double sigma = 0;             // denoise
  double seconds_per_step = 0;  // running mean
  double elapsed_seconds = 0;   // since the stage began
  double eta_seconds = 0;       // until the end of the stage; 0 where unknown
  uint64_t memory_bytes = 0;    // bytes of tensors and arena now
  int kept = -1;                // denoise: steps in the newest checkpoint; -1: none
  int64_t pictures = 0;         // decoded so far
  int turn = -1;                // denoise: the queue's turn, which checkpoints count; -1: no queue
  // The queue counts forwards as steps. It also tells the segments that have done all their steps,
  // the number of segments, and the seconds until the first has (0: it has, or nothing is known
  // yet).
  int finished_segments = 0, segments = 0;
  double first_frame_seconds = 0;
  // A video that follows a sound consists of chunks, each with its own steps.
  int chunk = 0, chunks = 1;
};

struct ProgressListener {
  virtual ~ProgressListener() = default;
  virtual void progress(const Progress& progress) = 0;
  // Comes after the progress of its step.
  virtual void preview(const Preview&) {}
  // Reports, in one line, a problem that does not end the job.
  virtual void warning(const std::string&) {}
  // True where the preview after `step` of `total` steps is made whatever time previews take.
  virtual bool wants_preview(int, int) { return false; }
};

// Sees a job's intermediate tensors under the golden cases' names: prompt_embeds [T, d],
// pooled_prompt_embeds [d] where the model reads such a vector, reference_latents.N [C, 1, h, w] of
// each reference picture (normalised), latents_initial [C, F, H, W],
// latents_final (normalised), video [3, F, H, W] in [0, 1]. All f32. Give one to every rank of a
// replica or to none: video is gathered whole.
struct PipelineTap {
  virtual ~PipelineTap() = default;
  virtual void tap(const char* name, const TensorView& value) = 0;
};

// kCheckpoints makes the memory plan count the copies that checkpoints take.
enum class Keeping : uint8_t { kNothing, kCheckpoints };

struct GeneratorOptions {
  Device device{};                // the device that computes everything
  DType dtype = DType::kF32;      // compute dtype of text encoder and transformer
  DType vae_dtype = DType::kF32;  // decoding in f32 is what the models were published with
  // The dtype of hidden rows between the pipeline stages of the method queue; unset: `dtype`.
  std::optional<DType> wire_dtype{};
  // Format of the transformer blocks' weights. Error(kUsage) for 8-bit weights where a layout
  // splits the width, and for kFile where it cuts the blocks in which they are stored.
  WeightFormat weights = WeightFormat::kCompute;
  // False where a memory mode may choose another one (smallest_weights).
  bool weights_fixed = true;
  // Format of the text encoder's matrices. Where it is not kCompute, one rank encodes for all.
  WeightFormat text_weights = WeightFormat::kCompute;
  // Format of the transformer's self-attention. Error(kUsage) where the device or the head size has
  // no 8-bit attention.
  AttentionFormat attention = AttentionFormat::kCompute;
  // Blocks of a transformer that are on the device at once, at least 2; the others are copied from
  // the host, or on a CPU read from the file, ahead of use (TransformerLoad::resident). 0: all.
  int resident_blocks = 0;
  // The memory mode of all jobs. kSpeed and resident_blocks exclude each other.
  MemoryMode mode = MemoryMode::kLayers;
  Graphs graphs = Graphs::kRecord;  // whether a device's forwards are recorded
  int threads = 0;                  // 0: all
  Determinism determinism = Determinism::kFast;
  uint64_t memory_limit = 0;  // bytes of all ranks on the device together; 0: what is free now
  const Ops* ops = nullptr;   // null: cpu_ops(). metered_ops() plans for other machines:
                              // memory_limit may then exceed this machine's memory
  int ranks_per_device = 1;   // ranks that share the device's memory (without one, the machine's)
  // The same two limits for the host's memory, where the job runs on a device.
  uint64_t host_memory_limit = 0;
  int ranks_per_host = 1;
  // Plans memory for this device instead of `device`, which is then a CPU whose ops compute nothing
  // (metered_ops()). memory_limit 0: all the memory of such a device.
  std::optional<DeviceTraits> planned{};
  Keeping keeping = Keeping::kNothing;  // set kCheckpoints if runs have a checkpoint_path
  // Steps between two previews, which the listener of a run sees; 0: none. A queue shows none, as
  // it decodes meanwhile. Error(kUsage) where the model's VAE has no PreviewFit.
  int preview_every = 0;
  double preview_share = PreviewBudget::kShare;  // of the time that previews may take
};

struct RunOptions {
  // Read on the root: the file to which the final latents are written before decoding starts
  // (safetensors). Empty: none.
  std::string latents_path;
  ProgressListener* listener = nullptr;
  PipelineTap* tap = nullptr;
  // Read between steps. True ends the job with Error(kStopped) after a last checkpoint. While
  // decoding, the job stops only if more than kFinishSeconds (video_decoder.h) of work are left.
  // The root's flag decides. Either every rank sets one or none does: before each step the root
  // sends its decision, 8 bytes, to every other rank.
  const std::atomic<bool>* stop = nullptr;
  // Read on the root: the file for step checkpoints (the newest two are kept, the caller removes
  // them; empty: none), the least number of seconds between two, and notes stored beside the job's
  // facts. A background thread writes a copy that holds up to four latents, or for the queue its
  // blocks and what they need (engine/generation/job_run.h); the memory plan counts it where
  // GeneratorOptions::keeping is kCheckpoints.
  std::string checkpoint_path{};
  double checkpoint_seconds = 60;
  std::map<std::string, std::string> notes{};
  // Recomputes every n-th step that the step cache skips, to measure its error; 0: none. It must be
  // the same on all ranks.
  int cache_audit = 0;
  // The folder in which the root keeps prompts' rows (text_cache.h). Either every rank sets it or
  // none does; empty: none.
  std::string text_cache{};
  // Bytes that the process holds beside the job's own on the rank's device. What earlier jobs have
  // left stays only in the rest of the memory.
  uint64_t beside = 0;
  // Rows of an image encoder [n, columns] f32 on the host in place of those of the job's pictures.
  TensorView image_rows{};
  std::shared_ptr<Checkpoint> resume{};  // read on the root: resumes from it and moves its tensors
};

struct StageSeconds {
  std::string stage;
  double seconds = 0;
};

// A step of a job with a step cache. Changes are relative L1 changes from the step before.
struct CachedStep {
  bool skipped = false;
  double embedding_change = 0;  // of what the time MLP makes of the timestep
  // The velocity for the positive prompt changes by this, in the first step by 0. The queue
  // measures none: its blocks are in different steps.
  std::optional<double> output_change{};
  std::optional<double> error{};  // of that velocity, where the step is skipped and audited
};

struct RunResult {
  Request request;                   // the resolved request
  std::vector<StageSeconds> stages;  // in order
  double seconds = 0;
  double first_frame_seconds = 0;  // from the start until the sink had taken the first frame
  int frames = 0;
  std::string framehash;           // SHA-256 over the RGB frames handed to the sink
  std::string signature;           // on the root: SHA-256 over the final latents' f32 bytes
  uint64_t arena_high_water = 0;   // arena bytes at most, whole job
  uint64_t decode_high_water = 0;  // arena bytes at most, decode stage
  uint64_t tensor_bytes_peak = 0;  // weights, latents, histories: all but the arena
  // The peak that MemoryPlan predicts: tensors and arena together. On a device it includes the ops'
  // scratch and the rounding up of committed ranges.
  uint64_t memory_high_water = 0;
  // The peak of each stage: encode_text, denoise, decode, encode_image, encode_audio. On a device
  // it is that of all stages up to the end of this one.
  std::array<uint64_t, 5> stage_high_water{};
  std::vector<CachedStep> cached{};  // by step, on the root; empty without a step cache
  OffloadTotals streaming{};         // weight offload of the forwards
  // The parts whose weights this rank loaded, in order: text_encoder, transformer, vae ... Those
  // that an earlier job left in memory are not among them.
  std::vector<std::string> loaded{};
  int resident_layers = 0;   // of a transformer in memory at once; 0: all
  std::string latents_path;  // the file that holds the final latents; empty if none was written
  int steps = 0;
  int resumed_at = 0;             // steps, or turns of the queue, that an earlier run had done
  double earlier_seconds = 0;     // time that the earlier run took for them
  int checkpoints = 0;            // checkpoints passed to the writer
  double checkpoint_seconds = 0;  // time that the job waited for them
};

}  // namespace weft
