#pragma once
// By which names the checkpoint of a Qwen-Image transformer is known. All have those of diffusers.
#include "io/weights/tensor_names.h"

namespace weft {

bool holds_qwen_image(const TensorNames& names);

}  // namespace weft
