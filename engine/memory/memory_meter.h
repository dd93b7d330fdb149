#pragma once
// MemoryMeter: measures the peak memory of a job's stages.
#include <algorithm>
#include <array>

#include "kernels/arena.h"
#include "kernels/stream.h"

namespace weft {

// Measures the memory of the device (or host) that the arena is in.
class MemoryMeter {
 public:
  enum Stage { kEncodeText, kDenoise, kDecode, kEncodeImage, kEncodeAudio, kStages };

  MemoryMeter(const Stream& stream, Arena& arena) : stream_(stream), arena_(arena) {
    reset_tensor_bytes_peak(kind());
    if (stream.queue()) reset_device_use_peak(arena.device());
  }
  // Ends a stage, which may have ended before: records its peaks and frees the memory of the arena
  // and of the ops' scratch.
  size_t stage_ended(Stage stage) {
    const size_t arena_peak = arena_.high_water();
    arena_high_water = std::max<uint64_t>(arena_high_water, arena_peak);
    tensor_peak = std::max<uint64_t>(tensor_peak, tensor_bytes_peak(kind()));
    high_water[stage] = std::max<uint64_t>(
        high_water[stage], stream_.queue() ? device_use(arena_.device()).peak
                                           : tensor_bytes_peak(kind()) + arena_peak);
    arena_.trim();
    arena_.reset_high_water();
    if (stream_.queue()) stream_.queue()->trim();
    reset_tensor_bytes_peak(kind());
    return arena_peak;
  }
  uint64_t arena_high_water = 0, tensor_peak = 0;
  std::array<uint64_t, kStages> high_water{};  // RunResult::stage_high_water

 private:
  Device::Kind kind() const { return arena_.device().kind; }
  const Stream& stream_;
  Arena& arena_;
};

}  // namespace weft
