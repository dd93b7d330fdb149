#pragma once
#include "kernels/cuda/queue.h"

namespace weft {

inline constexpr Device kCuda{Device::Kind::kCuda, 0};

// Changes the memory of the emulated device; null on a real one.
inline void (*resize_device)(size_t bytes) = nullptr;

// True if the tests run on the emulated device (README.md).
inline bool is_emulated(const Stream& stream) {
  return cuda_queue(stream).properties().name == "emulated GPU";
}

}  // namespace weft
