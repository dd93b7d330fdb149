#pragma once
// JobRun: a job on one rank between its encoded prompts and pictures and its file, and the drivers
// that run it. Every rank of the replica calls the same ones.
#include <chrono>

#include "engine/conditions/picture_conditions.h"
#include "engine/conditions/prompt_rows.h"
#include "engine/job/options.h"
#include "engine/job/stages.h"
#include "engine/latents/job.h"
#include "engine/memory/memory_meter.h"

namespace weft {

struct JobRun {
  // A Job of these facts and prompts.
  Job job(JobHost& host) const;

  const Rank& rank;
  const JobFacts& facts;
  const RunOptions& options;
  FrameSink* sink;  // of the root; null: frames are only hashed
  StageClock& clock;
  MemoryMeter& meter;
  RunResult& result;
  std::chrono::steady_clock::time_point started;
  Graphs graphs = Graphs::kRecord;
  std::vector<Prompt> prompts{};
  PictureConditions pictures{};
  PreviewJob preview{};
  double preview_share = 1;  // of the time that previews may take
  int first = 0;  // the steps of all chunks, or turns of the queue, that an earlier run has done
  Checkpoint about{};  // describe_job()
};

// Draws the chunks of a job one after the other: each is denoised, decoded and written. Where the
// video follows a sound, the pictures that end a chunk are encoded for the next one, and chunk r
// begins with the noise of the seed + r; other videos have one chunk. Throws Error(kStopped) where
// the root was asked to stop.
//
// A checkpoint counts the steps of all chunks, and holds the latents of those that are denoised and
// of the present one. A job that goes on from it decodes the former again.
//
// Memory of a rank beside that of a single chunk, where the video follows a sound: the features of
// the whole sound, on the host; the signal of a chunk, per branch; its reference and motion
// latents; and, while a chunk that is not the last is decoded, its rows of
// SpeechChunks::motion_frames pictures, f32. A root that keeps checkpoints has the latents of all
// chunks so far on the host, and once more in a checkpoint.
void run_chunks(JobRun& run);

// Draws the segments of a queue, which are decoded and written as they are done. Throws
// Error(kStopped) where the root was asked to stop, but for an endless video with frames: it ends.
//
// A checkpoint holds, with r bytes per latent frame, Q = min(T, B) segments of P frames and h
// tensors of the solver's history: ((1 + h) (Q P + C) + P + VaeTraits::history) r. For it the ranks
// of the last stage send the root all but the last frames, which the decoder sends.
void run_queue(JobRun& run);

}  // namespace weft
