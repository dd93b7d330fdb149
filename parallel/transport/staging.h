#pragma once
// Staging: pinned host memory that messages from and to a device pass through where a transport
// takes host memory alone. It belongs to one rank and one thread.
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device_memory.h"

namespace weft {

class Staging {
 public:
  struct Buffer {
    PinnedMemory memory;
    DeviceEvent read;  // passed when the device has read the memory
  };

  // A buffer of at least `bytes` that is no longer read: one that was given back, else a new one.
  Buffer take(size_t bytes);
  void give_back(Buffer buffer) { idle_.push_back(std::move(buffer)); }
  // Bytes of the buffers that wait for their next use. trim() frees them.
  int64_t held_bytes() const;
  void trim();

 private:
  std::vector<Buffer> idle_;
};

}  // namespace weft
