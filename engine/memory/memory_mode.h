#pragma once
// The memory mode of a job: what it may do to fit in memory, and the choice that follows from the
// plans of what it may do.
#include <functional>
#include <string>

#include "engine/memory/memory_plan.h"

namespace weft {

// The choice is made from these.
struct MemoryChoices {
  MemoryMode mode = MemoryMode::kAuto;
  int layers = 0;    // of the transformer on this rank
  int resident = 0;  // layers in memory at once that the user asks for; 0: the mode decides
  // The bytes of the job with so many layers in memory at once; 0: all.
  std::function<ComponentBytes(int resident)> bytes;
  uint64_t available = 0, host_available = UINT64_MAX;
};

// Returns the plan that the mode asks for, with its resident_layers and a reason. If nothing that
// the mode may do fits, returns the smallest plan, whose fits() is false.
MemoryPlan choose_plan(const MemoryChoices& choices);

}  // namespace weft
