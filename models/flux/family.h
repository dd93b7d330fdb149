#pragma once
// The FLUX.1 family's row of the registry.
#include "models/registry.h"

namespace weft {

extern const ModelFamily kFluxFamily;

}  // namespace weft
