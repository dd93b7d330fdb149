#pragma once
// Finds what each stage of a job holds in memory, by a dry run of this rank's part of it. The
// memory plan is made from it.
#include <span>

#include "engine/job/job_facts.h"
#include "engine/memory/memory_plan.h"
#include "engine/parts/rank.h"
#include "engine/parts/seams.h"
#include "engine/preview/preview_fit.h"
#include "models/footprint.h"

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

// The bytes that the weights of the text encoders take of a rank, and those that encoding takes at
// most.
struct DryEncoding {
  Footprint weights, ran;
};
// Loads the rank's part of them, and encodes prompts of so many rows. Where the model also reads a
// vector of each, `vectors` are the ids that these are made of. Counts of 0 are skipped.
DryEncoding dry_encode_text(DryRun& run, const Rank& rank, EncoderSeams& seams,
                            std::span<const int64_t> rows, std::span<const int64_t> vectors);

}  // namespace weft
