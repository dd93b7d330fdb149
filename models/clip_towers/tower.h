#pragma once
// Shared by both CLIP towers: how they spell their tensors.
#include <string>
#include <vector>

#include "models/clip_towers/names.h"
#include "models/files/tensor_sizes.h"
#include "models/pre_norm_encoder/blocks.h"

namespace weft {

inline constexpr EncoderBlockNames kClipBlockNames{.norm1 = "layer_norm1",
                                                   .q = "self_attn.q_proj",
                                                   .k = "self_attn.k_proj",
                                                   .v = "self_attn.v_proj",
                                                   .out = "self_attn.out_proj",
                                                   .norm2 = "layer_norm2",
                                                   .fc1 = "mlp.fc1",
                                                   .fc2 = "mlp.fc2"};

// Reads the fields that both towers have.
EncoderBlocksConfig read_clip_blocks(ConfigReader& fields);

// Returns a reader of sizes by Hugging Face names. Both arguments must outlive it.
TensorSizes clip_sizes(const TensorFile& file, const ClipNames& names);
// The sizes of the blocks, whose heads have `head_dim` columns. `what` is such a tower.
// Error(kModel) says what is missing or misshapen.
EncoderBlocksConfig clip_blocks_from_tensors(const TensorSizes& sizes, int64_t head_dim,
                                             const std::string& what);

// Checks the file's tensors against `tensors`, and finds the part of each that the slice holds.
// It ignores what is beside the tower.
CheckpointPart clip_tensors_of(const TensorFile& file, const EncoderBlocksConfig& config,
                               const std::vector<TensorSpec>& tensors, const ClipNames& names,
                               const WidthSlice& width);

}  // namespace weft
