#pragma once
// The sizes of a model that limit its jobs, and the sizes of a job that limit how it is split over
// ranks.
#include "engine/job/job_facts.h"
#include "engine/parts/components.h"

namespace weft {

// Lets the limits be at most those of a transformer's heads, blocks and feed-forward.
void limit_by(const TransformerTraits& traits, LayoutLimits& limits);

// `weights` is the format of the blocks' matrices.
LayoutLimits limits_of(const JobFacts& facts, const Components& parts, WeightFormat weights);

// The limits that the model sets for every request.
ModelLimits model_limits(const Components& parts);

}  // namespace weft
