#pragma once
// MemoryMeter: what a job's stages held at most, where the arena lies.
#include <algorithm>

#include "kernels/arena.h"
#include "kernels/stream.h"

namespace weft {

// The highest sum of what is held over the stages of a job, where the arena lies.
class MemoryMeter {
 public:
  MemoryMeter(const Stream& stream, Arena& arena) : stream_(stream), arena_(arena) {
    reset_tensor_bytes_peak(kind());
    if (stream.queue()) reset_device_use_peak(arena.device());
  }
  // Ends a stage: books its peaks and gives back what arena and ops took.
  size_t stage_ended() {
    const size_t arena_peak = arena_.high_water();
    arena_high_water = std::max<uint64_t>(arena_high_water, arena_peak);
    tensor_peak = std::max<uint64_t>(tensor_peak, tensor_bytes_peak(kind()));
    high_water =
        std::max<uint64_t>(high_water, stream_.queue() ? device_use(arena_.device()).peak
                                                       : tensor_bytes_peak(kind()) + arena_peak);
    arena_.trim();
    arena_.reset_high_water();
    if (stream_.queue()) stream_.queue()->trim();
    reset_tensor_bytes_peak(kind());
    return arena_peak;
  }
  uint64_t arena_high_water = 0, tensor_peak = 0, high_water = 0;

 private:
  Device::Kind kind() const { return arena_.device().kind; }
  const Stream& stream_;
  Arena& arena_;
};

}  // namespace weft
