#pragma once
// The checks of `weft doctor`: one line each, with a remedy where something is wrong.
#include <string>
#include <vector>

#include "apps/command_line/flags.h"

namespace weft {

enum class Health : uint8_t { kPass, kWarn, kFail };

struct HealthCheck {
  Health health = Health::kPass;
  std::string name, detail;
  std::string remedy;  // empty where all is well
};
using HealthChecks = std::vector<HealthCheck>;

// Checks cores, launcher, memory, limits, locale and environment, and changes nothing.
HealthChecks host_checks(const Flags& flags);
// Writes a file into `folder` (or where it would be made), renames and removes it.
HealthCheck output_check(const std::string& folder);

}  // namespace weft
