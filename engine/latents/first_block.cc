#include "engine/latents/first_block.h"

#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {

Change FirstBlock::difference(int branch, const TensorView& after, const TensorView& before) {
  axpby(stream_, 1, after, -1, before, before);
  if (!kept_[branch]) return {.change = 1, .size = 0};
  return change_of(stream_, before, kept_[branch]);
}

void FirstBlock::keep(int branch, const TensorView& difference) {
  if (!kept_[branch])
    kept_[branch] = Tensor(DType::kF32, {difference[0], difference[1]}, stream_.device());
  copy(stream_, difference, kept_[branch]);
}

}  // namespace weft
