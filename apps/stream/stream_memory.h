#pragma once
// The memory that a stream takes of the devices of its ranks, before anything is loaded.
#include <string>
#include <vector>

#include "engine/session/stream_engine.h"

namespace weft {

// The bytes that all ranks of a device take together, by device.
std::vector<StreamBytes> stream_memory(StreamEngine& engine, const std::string& caption);

// The memory of a machine's devices that was free when the object was made.
class FreeMemory {
 public:
  explicit FreeMemory(const StreamEngine& engine);

  bool has(const std::vector<StreamBytes>& needed) const;
  // Error(kMemory) that says what is needed, what is free, and what needs less.
  void check(const std::vector<StreamBytes>& needed) const;
  // "3.2 GiB of 22.6 GiB: weights 2.1 GiB, keys and workspace 1.1 GiB", a device after the other.
  std::string shown(const std::vector<StreamBytes>& needed) const;

 private:
  uint64_t of(Device device) const;

  std::vector<std::pair<Device, uint64_t>> free_;
};

}  // namespace weft
