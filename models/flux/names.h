#pragma once
// The names that a FLUX.1 transformer's checkpoint may use: diffusers' names, which are used
// here, or the names of Black Forest Labs' repository, where some matrices are joined.
#include <optional>
#include <string>

#include "io/weights/tensor_names.h"
#include "models/flux/transformer.h"

namespace weft {

// Returns whether the file holds a FLUX.1 transformer with either names.
bool holds_flux(const TensorNames& names);

// The place of a tensor with a diffusers name in a file with original ones. A stretch of a tensor
// that joins several has as many rows as the model is wide.
TensorPlace flux_original_place(const FluxConfig& config, const std::string& name);

// Its place in a LoRA of x-flux, whose processors join the same matrices. Its name is "" where they
// have none.
TensorPlace flux_processor_place(const std::string& name);

// Returns the tensors of a file with original names under diffusers names; nullopt for a file that
// has these. `file` must outlive the result.
std::optional<TensorFile> with_diffusers_names(const TensorFile& file, const FluxConfig& config);

}  // namespace weft
