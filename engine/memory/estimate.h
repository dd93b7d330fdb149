#pragma once
// Finds what each stage of a job holds in memory, by a dry run of this rank's part of it. The
// memory plan is made from it.
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/job_facts.h"
#include "engine/memory/memory_plan.h"
#include "engine/parts/components.h"
#include "engine/preview/preview_fit.h"

namespace weft {

struct MeasuredJob {
  const JobFacts& facts;
  size_t kept = 0;  // tensors that a checkpoint copies, each the size of the latent, f32
  bool decodes_meanwhile = false;       // frames are decoded between denoise steps
  int resident_blocks = 0;              // TransformerLoad::resident of the experts
  const PreviewFit* preview = nullptr;  // of a job with previews
};
// The bytes of one rank of the replica.
ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const MeasuredJob& job);

}  // namespace weft
