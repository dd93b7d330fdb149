#pragma once
// The sizes of a model that limit its jobs, and those of a job that limit how it can be split over
// ranks.
#include "engine/generation/components.h"
#include "engine/generation/request.h"

namespace weft {

// `request` is resolved; `guided` says that it has two guidance branches, and `weights` is the
// format of the blocks' matrices.
LayoutLimits limits_of(const Components& parts, const Request& request, bool guided,
                       WeightFormat weights);

// The limits that the model sets for every request.
ModelLimits model_limits(const Components& parts);

}  // namespace weft
