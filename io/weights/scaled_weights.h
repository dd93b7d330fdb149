#pragma once
// The 8-bit weights of safetensors files that people share: plain f8 values, and f8 or int8 values
// with a scale per tensor or per row.
#include "io/weights/tensor_file.h"

namespace weft {

// Returns the file with every 8-bit weight as f32, scaled by what stands beside it:
// `m.scale_weight` or `m.weight_scale` for `m.weight`. The tensors that describe the scaling
// (scales, `scaled_fp8`, `m.comfy_quant`) are not among the result's. A file without such weights
// is returned as it is. Throws Error(kModel) that names the tensor whose format is not read.
TensorFile expand_scaled(TensorFile file);

}  // namespace weft
