#pragma once
// Shared by both CLIP towers: how they spell their tensors.
#include <string>
#include <vector>

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

// Reads the keys that both towers have. Error(kModel) names the key, its value and what is legal.
EncoderBlocksConfig clip_blocks_from_json_file(const std::string& path);

// Checks the file's tensors against `tensors`, and finds the part of each that the slice holds. In
// the file, all names may begin with `prefix`; what is beside the tower is ignored.
CheckpointPart clip_tensors_of(const TensorFile& file, const EncoderBlocksConfig& config,
                               const std::vector<TensorSpec>& tensors, const std::string& prefix,
                               const WidthSlice& width);

}  // namespace weft
