#pragma once
// The flags of a command as the settings of a JobRunner.
#include <memory>

#include "apps/command_line/flags.h"
#include "engine/runner/job_runner.h"

namespace weft {

// Finds the ranks and opens --model, unless `model` is given. What the runner tells goes to
// standard error, as --quiet and --progress allow. `flags` must outlive the runner. Error(kUsage).
JobRunner job_runner(const Flags& flags, std::shared_ptr<const OpenModel> model = nullptr);

}  // namespace weft
