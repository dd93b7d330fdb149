#pragma once
// Shared by both CLIP towers: how they spell their tensors.
#include <string>
#include <vector>

#include "models/clip_towers/names.h"
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

// Reads sizes from the tensors of a file without a config. Error(kModel) names the tensor that is
// missing or misshapen.
struct ClipExtents {
  ClipExtents(const TensorFile& tensors, const ClipNames& spelled);

  // The extent of a tensor with a Hugging Face name; dimensions below 0 count from the last one.
  int64_t operator()(const std::string& name, int dim) const;
  // The sizes of the blocks, whose heads have `head_dim` columns. `what` is such a tower.
  EncoderBlocksConfig blocks(int64_t head_dim, const std::string& what) const;

  const TensorFile& file;
  const ClipNames& names;
  const std::string where;  // the file's path
};

// Checks the file's tensors against `tensors`, and finds the part of each that the slice holds.
// It ignores what is beside the tower.
CheckpointPart clip_tensors_of(const TensorFile& file, const EncoderBlocksConfig& config,
                               const std::vector<TensorSpec>& tensors, const ClipNames& names,
                               const WidthSlice& width);

}  // namespace weft
