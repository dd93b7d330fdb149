#pragma once
// The job of `weft generate`, also for commands that run it and print something else.
#include <memory>
#include <vector>

#include "apps/generate/request_flags.h"
#include "engine/runner/job_runner.h"

namespace weft {

// Refuses the outputs of jobs as far as they are known without a model: Error(kUsage) where they
// are not legal, Error(kOutput) by check_output().
void check_outputs(const Flags& flags, const std::vector<GivenJob>& jobs);

// Runs jobs as weft generate does, and calls `on_result` for every finished file. `model` is
// --model where the caller has opened it. Returns the exit code.
int generate(const Flags& flags, std::vector<GivenJob> jobs, const ResultListener& on_result,
             std::shared_ptr<const OpenModel> model = nullptr);

}  // namespace weft
