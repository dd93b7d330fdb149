#pragma once
// JobFacts: what a job is, as one value. It is made once from the opened model and the resolved
// request, or from a conformance case. Nothing recomputes what it says.
#include <array>
#include <optional>
#include <span>
#include <vector>

#include "engine/job/request.h"
#include "engine/parts/open_model.h"
#include "engine/sampling/sampler.h"
#include "parallel/schedule/denoise_plan.h"

namespace weft {

using DenoiseStep = DenoisePlanConfig::DenoiseStep;

// The sound that a job follows, and the video that it is heard with (HeardSound).
struct SoundLength {
  int64_t samples = 0;
  double fps = 0;
  int64_t chunk_frames = 0;
};

struct JobFacts {
  Request request;  // resolved
  Sampler sampler;
  // The latent [C, F, H, W] of the video, or of one chunk where the video follows a sound. A
  // forward computes `window` of it, which is all of it but for the queue: there it is the latent
  // of segment 0.
  std::array<int64_t, 4> latent{}, window{};
  std::array<int64_t, 3> grid{};  // the latent's tokens along frame, row and column
  // Rows and columns of the latents of the reference pictures, and the rows that the model joins to
  // its tokens for them.
  std::vector<std::array<int64_t, 2>> references{};
  int64_t reference_rows = 0;
  std::vector<double> guidance{};    // of each expert
  std::vector<DenoiseStep> steps{};  // with those that are known to be skipped
  // The rows of the positive and of the negative prompt, 0 where that one is not used, and those of
  // the schedule's prompts.
  std::array<int64_t, 2> prompt_rows{};
  std::vector<int64_t> later_rows{};
  std::vector<int> segment_prompts{};  // of the queue, by segment: 0 is the request's prompt
  std::optional<DualScope> dual_scope{};
  StalePatches patches{};
  int chunks = 1;  // of a video that follows a sound
  std::optional<SoundLength> sound{};

  bool guided() const;         // an expert has two forwards per step
  std::string tokens() const;  // their number, and that of rows of references, as text
  Sequence sequence() const { return {grid[0] * grid[1] * grid[2], grid[0]}; }
  // The rows of references that are split over the ranks as tokens are: all of them but where a
  // method keeps the keys of tokens from step to step. There every rank has all of them.
  int64_t beside() const { return patches || dual_scope ? 0 : reference_rows; }
  // The tokens that a forward splits.
  Sequence forward_sequence() const { return {sequence().tokens, grid[0], beside()}; }
  int segments() const { return static_cast<int>(segment_prompts.size()); }  // of the queue
};

JobFacts facts_of(const OpenModel& model, const Request& resolved);

// The sizes of a reference picture, whose own is known, in the model.
ReferenceSize reference_size_of(const ModelDirectory& model, const GivenPicture& picture);

// These are for requests that are being resolved; others have facts.
std::array<int64_t, 4> latent_of(const ModelDirectory& model, const Request& request);
std::array<int64_t, 3> grid_of(const ModelDirectory& model, const Request& request);
SamplerConfig sampler_of(const OpenModel& model, const Request& request);
// The expert of every step, chosen by its timestep, and the forwards per step. Nothing is skipped.
std::vector<DenoiseStep> steps_of(const ModelDirectory& model, const Request& request,
                                  const Sampler& sampler);
// The same from a boundary between experts and the scale of each.
std::vector<DenoiseStep> steps_of(const Sampler& sampler, double boundary_ratio,
                                  std::span<const double> guidance);

}  // namespace weft
