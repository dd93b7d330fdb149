#pragma once
// Random checkpoints of a model's true shapes, for figures and tests that need no picture.
#include <string>

#include "models/qwen.h"
#include "models/wan.h"

namespace weft {

// Wan 2.1 1.3B's widths with `layers` of its 30 blocks.
WanConfig wan_1_3b(int layers = 30);
// The same of 14B's 40.
WanConfig wan_14b(int layers = 40);

// Qwen3-0.6B's extents.
QwenConfig qwen3_0_6b();

// bf16 values of +-2^-6 to 2^-5 at 2^-6's spacing, the same for the same seed.
void fill_random(uint64_t seed, const TensorView& out);

// Every tensor in bf16 by fill_random, seeds counted from `first_seed`, in memory, made when it is
// asked for.
TensorFile random_tensors(const std::vector<TensorSpec>& tensors, uint64_t first_seed = 0);

// The transformer's so: its activations stay finite, its picture is noise.
TensorFile random_wan(const WanConfig& config);

// All tensors of a made file, written to a real one.
void write_random(const std::string& path, const TensorFile& tensors);

}  // namespace weft
