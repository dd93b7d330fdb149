#pragma once
// StoredMatrix: a weight matrix as a file stores it.
#include "kernels/stored_blocks.h"
#include "kernels/tensor.h"

namespace weft {

struct StoredMatrix {
  BlockType type = BlockType::kF16;
  int64_t out = 0, in = 0;  // `in` is a multiple of the block's values
  Tensor blocks{};          // [out, row_bytes()] kU8
  Tensor scales{};          // f32 [1], or [out], by which values are multiplied; empty: none

  int64_t row_bytes() const { return in / shape_of(type).values * shape_of(type).bytes; }
};

}  // namespace weft
