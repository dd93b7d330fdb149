#pragma once
// The spellings a Wan transformer checkpoint may use: diffusers names (ours), or those of the
// original repository, either behind a prefix of a single-file checkpoint.
#include <string>

#include "io/tensor_file.h"

namespace weft {

struct WanNames {
  std::string prefix;     // "", "diffusion_model." or "model.diffusion_model."
  bool original = false;  // names of the original repository

  // The file's spelling of a diffusers name.
  std::string operator()(const std::string& name) const;
};

// Found from the tensor names alone; Error(kModel) where neither spelling is there.
WanNames detect_wan_names(const TensorFile& file);

}  // namespace weft
