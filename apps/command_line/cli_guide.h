#pragma once
#include <string>

namespace weft {

// The text of apps/guide/cli.md: what stays stable, and every flag (`weft completion markdown`).
std::string cli_guide();

}  // namespace weft
