#include "apps/commands.h"
#include "apps/commit.h"

namespace weft {

namespace {
std::string g_name = "weft";
}

const std::string& program_name() { return g_name; }
void set_program_name(const std::string& name) { g_name = name; }

std::string version_text() {
  return std::string("weft " WEFT_VERSION ", numerics epoch ") + std::to_string(kNumericsEpoch) +
         ", commit " + kCommit;
}

}  // namespace weft
