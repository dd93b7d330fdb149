#pragma once
// The names that a Krea-2 transformer's checkpoint may use: diffusers' names, which are used here,
// or those of single files.
#include <string>

#include "io/weights/tensor_names.h"

namespace weft {

bool has_original_krea2_names(const TensorNames& names);
// Returns whether the file holds a Krea-2 transformer with either names.
bool holds_krea2(const TensorNames& names);

// The name in a single file of a tensor with this diffusers name.
std::string krea2_original_name(const std::string& name);

}  // namespace weft
