#pragma once
// The spellings that a Z-Image transformer checkpoint may use: diffusers names, which are used
// here, or the names of single files, where one matrix holds q, k and v.
#include <string>

#include "io/weights/tensor_names.h"
#include "models/transformer.h"

namespace weft {

struct ZImageNames {
  bool single_file = false;  // names of single files
  std::string patch = "2-1";

  // The place of the tensor with this diffusers name.
  TensorPlace operator()(const std::string& name) const;
};

// Detects the spelling from the tensor names. Throws Error(kModel) if it is neither of the two.
ZImageNames detect_z_image_names(const TensorFile& file);

// Returns whether the file holds a Z-Image transformer in either spelling.
bool holds_z_image(const TensorNames& names);

}  // namespace weft
