#pragma once
// How attention of a queue is done and was done, call by call; a part of the queue, for tests.
#include "kernels/cuda/queue.h"
#include "kernels/device_plan.h"

namespace weft::cuda {

struct AttentionPaths {
  explicit AttentionPaths(CudaQueue&) {}
  // Multiplications of q k^T from which on a call is the library's, or done by warpgroups.
  int64_t library_from = kLargeAttention, sm90_from = kLargeAttention;

  int64_t library = 0;  // sdpa.h
  int64_t flash = 0;    // the flash kernels
  int64_t sm90 = 0;     // by products of warpgroups; of these and the flash kernels:
  int64_t split = 0;    // launches whose keys were cut in parts
  int64_t chained = 0;  // launches behind the first of a call with many segments
  int64_t gemm = 0;     // matrix products over large heads
};

}  // namespace weft::cuda
