#pragma once
// Advice for a job that does not fit into memory.
#include <functional>
#include <string>
#include <vector>

#include "engine/job/options.h"
#include "engine/job/request.h"
#include "engine/memory/memory_plan.h"
#include "parallel/mesh.h"

namespace weft {

// The format of the blocks' weights that takes the least memory of those that the options leave
// open and that this device has for a layout. Another one than theirs changes the result.
WeightFormat smallest_weights(const GeneratorOptions& options, const Layout& layout);

// A job whose plan does not fit, on a rank of a layout.
struct RefusedJob {
  const Request& request;
  const GeneratorOptions& options;
  const MemoryPlan& plan;
  Layout layout{};
  int rank = 0;
  const ModelLimits& limits;
  std::vector<Layout> layouts{};  // legal ones of as many ranks
  int layers = 0;                 // of the transformer
};
// The plan of the job with another request, other options or another layout. One that is not legal
// does not fit.
using PlanOf = std::function<MemoryPlan(const Request& request, const GeneratorOptions& options,
                                        const Layout& layout, int rank)>;

// "the job needs 5.02 GiB (weights ...), 4.00 GiB are available. Try ", of a plan that does not
// fit.
std::string shortage(const MemoryPlan& plan);

// The error line for a job that does not fit: the memory it needs, the memory available, and two or
// three things to try with the memory each of them needs, a second layout where there is room.
std::string refusal(const RefusedJob& job, const PlanOf& plan_of);

}  // namespace weft
