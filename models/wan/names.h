#pragma once
// The spellings that a Wan transformer checkpoint may use: diffusers names, which are used here, or
// the names of the original repository.
#include <string>

#include "io/weights/tensor_names.h"

namespace weft {

struct WanNames {
  bool original = false;  // names of the original repository

  // The file's spelling of a diffusers name.
  std::string operator()(const std::string& name) const;
};

// Detects the spelling from the tensor names. Throws Error(kModel) if it is neither of the two.
WanNames detect_wan_names(const TensorFile& file);

// Returns whether the file holds a Wan transformer in either spelling.
bool holds_wan(const TensorNames& names);

}  // namespace weft
