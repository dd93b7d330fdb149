#pragma once
// FirstBlock: what the first pipeline stage of a job with the cache first-block keeps: per branch
// that it computes, what the first block added to the hidden rows in the last step that ran all
// blocks. Where it adds nearly the same again, the other blocks are skipped (ParaAttention's
// first-block cache).
//
// Memory: (n + j) D 4 bytes per branch for n tokens and j rows of joint text.
#include <array>

#include "engine/latents/block_cache.h"

namespace weft {

class FirstBlock {
 public:
  explicit FirstBlock(Stream& stream) : stream_(stream) {}

  // `before` [N, D] f32 are the rows before the block and `after` those after it. Turns `before`
  // into their difference, and returns the change of its first `counted` rows from what is kept:
  // all of them, where nothing is.
  Change difference(int branch, const TensorView& after, const TensorView& before, int64_t counted);
  void keep(int branch, const TensorView& difference);

 private:
  Stream& stream_;
  std::array<Tensor, 2> kept_{};
};

}  // namespace weft
