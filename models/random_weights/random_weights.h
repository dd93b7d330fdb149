#pragma once
// Random checkpoints with the true shapes of a model, for benchmarks and tests that need no real
// picture.
#include <string>

#include "models/causal_decoder/decoder.h"
#include "models/wan/transformer.h"

namespace weft {

// The config of Wan 2.1 1.3B with `layers` of its 30 blocks.
WanConfig wan_1_3b(int layers = 30);
// The config of Wan 2.1 14B with `layers` of its 40 blocks.
WanConfig wan_14b(int layers = 40);

// The transformer of a published model by its name. Error(kUsage) lists the names.
std::shared_ptr<const TransformerModel> published_transformer(const std::string& name);
std::string published_transformers();  // "wan2.1-1.3b|wan2.1-14b|..."

// The config of Qwen3-0.6B.
DecoderConfig qwen3_0_6b();

// Fills `out` with bf16 values of either sign and magnitude 2^-6 to 2^-5, spaced as bf16 is there.
// The same seed gives the same values.
void fill_random(uint64_t seed, const TensorView& out);

// Tensors in memory, in bf16, filled by fill_random when they are first used. The first one has the
// seed `first_seed`, the next one a seed one higher, and so on. Those of one dimension, biases and
// norms, may have another dtype; their values in f32 are none that bf16 holds.
TensorFile random_tensors(const std::vector<TensorSpec>& tensors, uint64_t first_seed = 0,
                          DType vectors = DType::kBF16);

// random_tensors of a Wan transformer. Its activations stay finite; its picture is noise.
TensorFile random_wan(const WanConfig& config);

// Writes generated tensors to a file.
void write_random(const std::string& path, const TensorFile& tensors);

}  // namespace weft
