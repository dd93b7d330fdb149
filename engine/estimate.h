#pragma once
// The bridge between a request and the memory plan: what a job's stages hold, from configurations
// and the models' own predictions.
#include <array>
#include <functional>
#include <string>

#include "engine/components.h"
#include "engine/planner.h"
#include "engine/request.h"

namespace weft {

// The latent [C, F, H, W] of a resolved request.
std::array<int64_t, 4> latent_shape(const Components& parts, const Request& request);
int64_t token_count(const Components& parts, const Request& request);

// Of one rank of the replica. `prompt_rows`: ids of the positive and the negative prompt; 0 where
// the negative is not used. `kept`: latents and tensors of their size that a checkpoint copies, 4
// bytes per value.
ComponentBytes predict_bytes(const Components& parts, const Replica& replica,
                             const Request& request, std::array<int64_t, 2> prompt_rows,
                             size_t kept);

// The line for a job that does not fit: what it needs, what there is, and two things to try, with
// their own numbers.
struct Changes {
  std::function<MemoryPlan(const Request&)> request;  // the plan of a changed request
  std::function<MemoryPlan(int)> resident;            // of so many resident layers
  int layers = 0;                                     // of a device's transformer; 0: no such plan
};
std::string refusal(const Request& request, const MemoryPlan& plan, const ModelLimits& limits,
                    DType dtype, const Changes& changes);

}  // namespace weft
