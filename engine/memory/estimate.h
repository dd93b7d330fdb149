#pragma once
// Finds what each stage of a job holds in memory, by a dry run of this rank's part of it. The
// memory plan is made from it.
#include <array>
#include <functional>
#include <string>

#include "engine/generation/components.h"
#include "engine/generation/request.h"
#include "engine/memory/memory_plan.h"
#include "engine/sampling/sampler.h"

namespace weft {

// The latent [C, F, H, W] of a resolved request.
std::array<int64_t, 4> latent_shape(const Components& parts, const Request& request);
// The tokens of a forward along frame, row and column.
std::array<int64_t, 3> token_grid(const Components& parts, const Request& request);
Sequence sequence_of(const Components& parts, const Request& request);

struct MeasuredJob {
  const Request& request;  // resolved
  const Sampler& sampler;
  // The ids of the positive and of the negative prompt; 0 where the negative one is not used.
  std::array<int64_t, 2> prompt_rows{};
  size_t kept = 0;  // tensors that a checkpoint copies, each the size of the latent, f32
  bool decodes_meanwhile = false;  // frames are decoded between denoise steps
};
// The bytes of one rank of the replica.
ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const MeasuredJob& job);

// Memory plans of changed requests, from which `refusal` finds settings that would fit.
struct Changes {
  std::function<MemoryPlan(const Request&)> request;  // the plan of a changed request
  std::function<MemoryPlan(int)> resident;            // the plan with so many resident layers
  int layers = 0;  // layers of the transformer; 0 where --resident-layers has no meaning (CPU)
  std::function<MemoryPlan(const Layout&, int rank)> layout;  // the plan under another layout
  std::vector<Layout> layouts{};                              // the layouts to try, in this order
};
// The layouts of as many ranks that split the weights most, without the layout itself.
std::vector<Layout> other_layouts(const Layout& layout, const LayoutLimits& limits);

// The error line for a job that does not fit: the memory it needs, the memory available, and two
// things to try with the memory each of them needs.
std::string refusal(const Request& request, const MemoryPlan& plan, const ModelLimits& limits,
                    DType dtype, const Changes& changes);

}  // namespace weft
