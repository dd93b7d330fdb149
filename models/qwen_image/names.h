#pragma once
// The spellings that a Qwen-Image transformer checkpoint may use: diffusers names, which single
// files have with a prefix.
#include <optional>
#include <string>

#include "io/weights/tensor_file.h"

namespace weft {

// The prefix of the names in a file with a Qwen-Image transformer: "", "diffusion_model." or
// "model.diffusion_model."; nullopt for any other file.
std::optional<std::string> find_qwen_image_prefix(const TensorFile& file);
// The same. Throws Error(kModel) if the file holds no such transformer.
std::string qwen_image_prefix(const TensorFile& file);
bool holds_qwen_image(const TensorFile& file);

}  // namespace weft
