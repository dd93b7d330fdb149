#pragma once
// The 8-bit weights of safetensors files that people share: plain f8 values, and f8 or int8 values
// with a scale per tensor, per row or per 128 x 128 values.
#include "io/weights/tensor_file.h"

namespace weft {

// Returns the file with every 8-bit weight as f32, scaled by what stands beside it:
// `m.scale_weight`, `m.weight_scale` or `m.weight_scale_inv` for `m.weight`. The tensors that
// describe the scaling (scales, `scaled_fp8`, `m.comfy_quant`) are not among the result's. A file
// without such weights is returned as it is. `renamed` says how the file's names were changed,
// which its metadata has too. Throws Error(kModel) that names the tensor whose format is not read.
TensorFile expand_scaled(TensorFile file, const TensorFile::Renaming& renamed = {});

}  // namespace weft
