#pragma once
// Thresholds that choose the attention kernel, and counters of what was chosen. They are a part of
// the queue.
#include "kernels/cuda/device.h"
#include "kernels/cuda/flash.h"
#include "kernels/cuda/queue.h"

namespace weft::cuda {

struct AttentionPaths {
  explicit AttentionPaths(CudaQueue&);  // as set_cuda_attention_path() says
  // From this many multiplications of q k^T on, a call goes to the library, or to flash_sm90.
  int64_t library_from = kLargeAttention, sm90_from = kLargeAttention;
  // From this many keys on, flash_sm90 comes before the library.
  int64_t long_from = kLongAttention;

  AttentionPath last = AttentionPath::kAuto;  // what the last call took

  int64_t library = 0;  // calls of the library (sdpa.h)
  int64_t flash = 0;    // calls of the other flash kernels
  int64_t sm90 = 0;     // calls of flash_sm90
  int64_t split = 0;    // launches of either flash kernel whose keys were cut in parts
  int64_t chained = 0;  // launches after the first of a call with many segments
  int64_t gemm = 0;     // calls of attention_gemm, for large heads
};

}  // namespace weft::cuda
