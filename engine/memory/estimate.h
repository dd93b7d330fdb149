#pragma once
// Finds what each stage of a job holds in memory, by a dry run of this rank's part of it. The
// memory plan is made from it.
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/generation/components.h"
#include "engine/generation/request.h"
#include "engine/memory/memory_plan.h"
#include "engine/preview/preview_fit.h"
#include "engine/sampling/sampler.h"

namespace weft {

// The latent [C, F, H, W] of a resolved request: of a clip where it has several (SoundClips).
std::array<int64_t, 4> latent_shape(const Components& parts, const Request& request);
// The tokens of a forward along frame, row and column.
std::array<int64_t, 3> token_grid(const Components& parts, const Request& request);
Sequence sequence_of(const Components& parts, const Request& request);

// The length of a sound, and the video that it is heard with (HeardSound).
struct SoundLength {
  int64_t samples = 0;
  double fps = 0;
  int64_t clip_frames = 0;
};

struct MeasuredJob {
  const Request& request;  // resolved
  const Sampler& sampler;
  // The ids of the positive and of the negative prompt; 0 where the negative one is not used.
  std::array<int64_t, 2> prompt_rows{};
  size_t kept = 0;  // tensors that a checkpoint copies, each the size of the latent, f32
  bool decodes_meanwhile = false;       // frames are decoded between denoise steps
  int resident_blocks = 0;              // TransformerLoad::resident of the experts
  std::optional<SoundLength> sound{};   // unset: the job hears nothing
  const PreviewFit* preview = nullptr;  // of a job with previews
};
// The bytes of one rank of the replica.
ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const MeasuredJob& job);

}  // namespace weft
