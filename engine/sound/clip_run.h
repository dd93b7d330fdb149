#pragma once
// The part of a job between its encoded prompts and picture and its file, where the video follows a
// sound: clips are denoised, decoded and written one after the other. The pictures that end a clip
// are encoded for the next one. Clip r begins with the noise of the seed + r.
//
// A checkpoint counts the steps of all clips, and holds the latents of those that are denoised and
// of the present one. A job that goes on from it decodes the former again.
//
// Memory of a rank beside that of a single clip: the features of the whole sound, on the host; the
// signal of a clip, per branch; its reference and motion latents; and, while a clip that is not the
// last is decoded, its rows of SoundClips::motion_frames pictures, f32. A root that keeps
// checkpoints has the latents of all clips so far on the host, and once more in a checkpoint.
#include <array>
#include <chrono>

#include "engine/denoising/denoiser.h"
#include "engine/generation/generator.h"
#include "engine/generation/stages.h"
#include "engine/job/checkpoint.h"
#include "engine/memory/memory_meter.h"

namespace weft {

struct ClipRun {
  const Rank& rank;
  const JobFacts& facts;
  std::array<TensorView, 2> prompts;  // rows [length, d] f32 per branch, on the stream's device
  TensorView reference;               // [C, 1, h, w] f32, on the stream's device
  Graphs graphs = Graphs::kRecord;
  const PreviewJob* preview = nullptr;
  int first_step = 0;  // of those of all clips
  Checkpoint about{};  // describe_job()
};

// Throws Error(kUsage) that says why where the checkpoint cannot be resumed by the job with this
// record.
void check_clips_resumable(const Checkpoint& checkpoint, const std::string& record,
                           const JobFacts& facts);

// The receivers of what the clips become.
struct ClipReceivers {
  FrameSink* sink;
  const RunOptions& options;
  StageClock& clock;
  MemoryMeter& meter;
  RunResult& result;
  std::chrono::steady_clock::time_point started;
};

// Encodes the sound, and draws the clips. Every rank of the replica calls it. Fills in what the
// result says of the frames. Throws Error(kStopped) where the root was asked to stop.
void run_clips(ClipRun run, const ClipReceivers& receivers);

}  // namespace weft
