#pragma once
// Staging: the pinned host memory that a device's messages pass through where a transport takes the
// host's memory alone. One rank's, of one thread.
#include <memory>
#include <vector>

#include "kernels/device_memory.h"

namespace weft {

class Staging {
 public:
  struct Buffer {
    PinnedMemory memory;
    DeviceEvent read;  // passed: the device has taken what lay in it
  };

  // At least `bytes`, that nobody reads any more: one that was given back, else a new one.
  Buffer take(size_t bytes);
  void give_back(Buffer buffer) { idle_.push_back(std::move(buffer)); }

 private:
  std::vector<Buffer> idle_;
};

}  // namespace weft
