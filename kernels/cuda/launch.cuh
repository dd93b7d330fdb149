#pragma once
// All kernels of this folder are launched by launch(). The tests run kernels on a host behind
// cudaLaunchKernelEx, so there is no other way to start one.
#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/intrinsics.cuh"
#include "kernels/cuda/queue.h"

namespace weft::cuda {

struct Launch {
  dim3 grid, block;
  size_t shared = 0;  // dynamic shared memory, bytes
};

// Enqueues `kernel` on `stream`. Launch errors are thrown here; errors of the run are thrown by the
// next call that waits.
template <class... Parameters, class... Arguments>
void launch(const Stream& stream, const Launch& how, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = how.grid;
  config.blockDim = how.block;
  config.dynamicSmemBytes = how.shared;
  config.stream = cuda_queue(stream).stream();
  constexpr size_t kWithoutAsking = 48 << 10;
  if (how.shared > kWithoutAsking)
    WEFT_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(how.shared)));
  WEFT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace weft::cuda
