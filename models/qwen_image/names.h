#pragma once
// The names that the checkpoint of a Qwen-Image transformer may use. All of them are diffusers'.
#include "io/weights/tensor_names.h"

namespace weft {

bool holds_qwen_image(const TensorNames& names);

}  // namespace weft
