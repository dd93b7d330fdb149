#pragma once
// The flags of a command as the settings of a JobRunner.
#include "apps/command_line/flags.h"
#include "engine/runner/runner_settings.h"

namespace weft {

// Finds the ranks. What the runner tells goes to standard error, as --quiet and --progress allow.
// `flags` must outlive the settings. Error(kUsage).
RunnerSettings runner_settings(const Flags& flags);

}  // namespace weft
