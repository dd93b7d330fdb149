#pragma once
// A copy of a checkpoint whose matrices are quantised as files of users are, for benchmarks and
// tests.
#include <memory>

#include "io/weights/tensor_file.h"

namespace weft {

// Returns the tensors of `file` under their names. Those of two dimensions whose columns are whole
// blocks are stored as `type`: Q8_0, Q4_0, Q4_K, f16, bf16, or f8_e4m3 and int8 with a scale per
// row. They are quantised by rounding to the nearest code when they are read. Another type is an
// Error(kUsage).
TensorFile quantised_copy(std::shared_ptr<const TensorFile> file, BlockType type);

}  // namespace weft
