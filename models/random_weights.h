#pragma once
// Random checkpoints of a model's true shapes, for figures and tests that need no picture.
#include <string>

#include "models/wan.h"

namespace weft {

// Wan 2.1 1.3B's widths with `layers` of its 30 blocks.
WanConfig wan_1_3b(int layers = 30);

// Every tensor of the config in bf16, values of +-2^-6 to 2^-5: the network's activations stay
// finite, its picture is noise.
void write_random_wan(const std::string& path, const WanConfig& config);

}  // namespace weft
