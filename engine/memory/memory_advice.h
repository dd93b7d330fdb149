#pragma once
// Advice for a job that does not fit into memory.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/options.h"
#include "engine/job/request.h"
#include "engine/memory/memory_plan.h"
#include "parallel/mesh.h"

namespace weft {

// The format of the blocks' weights that takes the least memory of those that the options leave
// open and that this device has for a layout. Another one than theirs changes the result.
WeightFormat smallest_weights(const GeneratorOptions& options, const Layout& layout);

// A memory mode as a flag, and the plan of the job under it.
using OtherMode = std::pair<std::string, std::function<MemoryPlan()>>;
// The modes that may do more than that of `options` to fit. `plan` plans the job with other
// options.
std::vector<OtherMode> other_modes(const GeneratorOptions& options, const Layout& layout,
                                   const std::function<MemoryPlan(const GeneratorOptions&)>& plan);

// Memory plans of changed requests, from which `refusal` finds settings that would fit.
struct Changes {
  std::vector<OtherMode> modes{};
  std::function<MemoryPlan(const Request&)> request;  // the plan of a changed request
  std::function<MemoryPlan(int)> resident;            // the plan with so many resident layers
  int layers = 0;  // layers of the transformer; 0 where the mode has chosen how many are resident
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
