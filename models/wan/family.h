#pragma once
// Wan's rows of the registry.
#include "models/registry.h"

namespace weft {

extern const ModelFamily kWanFamily, kWanPictureFamily;

}  // namespace weft
