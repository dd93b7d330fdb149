#include "engine/memory/memory_beside.h"

#include <algorithm>

#include "kernels/tensor.h"

namespace weft {

bool fits_beside(const MemoryPlan& plan, const GeneratorOptions& options, uint64_t bytes) {
  if (plan.resident_layers > 0) return false;  // there is too little already
  const auto sharing = static_cast<uint64_t>(options.ranks_per_device);
  const uint64_t limit = options.memory_limit;
  const uint64_t room = available_memory(options.device) + tensor_bytes_live(options.device.kind);
  for (const Residency residency :
       {Residency::kAll, Residency::kStaged, Residency::kOneExpert, Residency::kSequential}) {
    const MemoryPlan chosen = memory_under(residency, plan.parts, limit / sharing);
    if (chosen.fits_device()) return chosen.high_water * sharing + bytes <= std::min(limit, room);
  }
  return false;
}

}  // namespace weft
