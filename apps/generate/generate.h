#pragma once
// The job of `weft generate`, also for commands that run it and print something else.
#include <memory>
#include <vector>

#include "apps/generate/drawer.h"

namespace weft {

// Runs jobs as weft generate does, and calls `on_result` for every finished file. `model` is
// --model where the caller has opened it. Returns the exit code.
int generate(const Flags& flags, std::vector<GivenJob> jobs, const ResultListener& on_result,
             std::shared_ptr<const OpenModel> model = nullptr);

}  // namespace weft
