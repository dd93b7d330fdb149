#pragma once
// How attention of a queue was done, call by call; a part of the queue that tests read.
#include "kernels/cuda/queue.h"

namespace weft::cuda {

struct AttentionPaths {
  explicit AttentionPaths(CudaQueue&) {}
  int64_t library = 0;   // sdpa.h
  int64_t flash = 0;     // the flash kernels; of them:
  int64_t split = 0;     // launches whose keys were cut in parts
  int64_t chained = 0;   // launches behind the first of a call with many segments
  int64_t products = 0;  // matrix products over large heads
};

}  // namespace weft::cuda
