#pragma once
// Qwen-Image's row of the registry.
#include "models/registry.h"

namespace weft {

extern const ModelFamily kQwenImageFamily;

}  // namespace weft
