#pragma once
// What `weft doctor` finds out: one line per check, with a remedy where something is wrong.
#include <string>
#include <vector>

#include "apps/flags.h"

namespace weft {

enum class Health : uint8_t { kPass, kWarn, kFail };

struct HealthCheck {
  Health health = Health::kPass;
  std::string name, detail;
  std::string remedy;  // empty where all is well
};
using HealthChecks = std::vector<HealthCheck>;

// The machine: cores, memory, limits, locale, environment. Nothing of it is changed.
HealthChecks host_checks();
// A file is written into `folder` (or where it would be made), renamed and removed.
HealthCheck output_check(const std::string& folder);

}  // namespace weft
