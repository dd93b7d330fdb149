#pragma once
// How attention of a queue is done and was done, call by call; a part of the queue, for tests.
#include "kernels/cuda/queue.h"

namespace weft::cuda {

struct AttentionPaths {
  explicit AttentionPaths(CudaQueue&) {}
  // Multiplications of q k^T from which on a call is the library's: 17 Gflop in all, some 45 us by
  // our kernels. Preparing a shape takes it about half a second of the host, once.
  int64_t library_from = int64_t{1} << 32;
  // The same for products of warpgroups, whose operands are copied into tiles first.
  int64_t group_from = int64_t{1} << 32;

  int64_t library = 0;   // sdpa.h
  int64_t flash = 0;     // the flash kernels
  int64_t group = 0;     // by products of warpgroups; of these and the flash kernels:
  int64_t split = 0;     // launches whose keys were cut in parts
  int64_t chained = 0;   // launches behind the first of a call with many segments
  int64_t products = 0;  // matrix products over large heads
};

}  // namespace weft::cuda
