#pragma once
// Z-Image's row of the registry.
#include "models/registry.h"

namespace weft {

extern const ModelFamily kZImageFamily;

}  // namespace weft
