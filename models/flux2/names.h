#pragma once
// The names that a FLUX.2 transformer's checkpoint may use: diffusers' names, which are used
// here, or the names of Black Forest Labs' repository, where the queries, keys and values of a
// stream are one matrix.
#include <string>

#include "io/weights/tensor_names.h"
#include "models/flux2/transformer.h"

namespace weft {

bool has_original_flux2_names(const TensorNames& names);
// Returns whether the file holds a FLUX.2 transformer with either names.
bool holds_flux2(const TensorNames& names);

// The place of a tensor with a diffusers name in a file with original ones.
TensorPlace flux2_original_place(const std::string& name);

}  // namespace weft
