#include "engine/latents/first_block.h"

#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {

Change FirstBlock::difference(int branch, const TensorView& after, const TensorView& before,
                              int64_t counted) {
  axpby(stream_, 1, after, -1, before, before);
  if (!kept_[branch]) return {.change = 1, .size = 0};
  return change_of(stream_, before.slice(0, 0, counted), kept_[branch].view().slice(0, 0, counted));
}

void FirstBlock::keep(int branch, const TensorView& difference) {
  if (!kept_[branch])
    kept_[branch] = Tensor(DType::kF32, {difference[0], difference[1]}, stream_.device());
  copy(stream_, difference, kept_[branch]);
}

}  // namespace weft
