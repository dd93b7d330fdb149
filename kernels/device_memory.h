#pragma once
// Memory of a device, and the order of work on it. A CPU needs none of this: its memory is the
// process's and its work runs inline. Built with the CUDA backend (cuda/memory.cc), else every
// function throws (cuda/unavailable.cc).
#include <cstddef>
#include <memory>

#include "kernels/tensor.h"

namespace weft {

class Stream;

// One ordered queue of work on a device; what a backend keeps with it (library handles, a
// workspace) is its implementation's.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  virtual void sync() = 0;  // waits until all work given so far is done
  virtual void trim() {}    // gives back what single ops took for a moment; waits
};

// Zeroed memory, 256-byte aligned, that every stream of the device may use at once. Error(kMemory)
// with what was wanted and what is free. Freeing waits for the device; not for a step.
void* device_malloc(Device device, size_t bytes);
void device_free(Device device, void* data, size_t bytes);

struct DeviceMemoryInfo {
  size_t free = 0, total = 0;
};
DeviceMemoryInfo device_memory_info(Device device);

// What this process holds of a device by device_malloc and DeviceRange, and the most since the last
// reset: tensors, arenas and the scratch of ops, not a driver's context, code and graphs.
struct DeviceUse {
  size_t live = 0, peak = 0;
};
DeviceUse device_use(Device device);
void reset_device_use_peak(Device device);

// Addresses without memory behind them; memory comes by commit. What an Arena lies in: its
// addresses stay the same over steps, as captured graphs want them.
class DeviceRange {
 public:
  DeviceRange(Device device, size_t limit);
  ~DeviceRange();
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

  char* base() const { return base_; }
  size_t committed() const { return committed_; }
  void commit(size_t bytes);  // at least the first `bytes` have memory. Error(kMemory)
  void trim(size_t bytes);    // what lies behind them goes back; waits for the device

 private:
  struct Pieces;
  Device device_;
  size_t limit_ = 0, committed_ = 0;
  char* base_ = nullptr;
  std::unique_ptr<Pieces> pieces_;
};

// Host memory that a device copies from and to while the host goes on. A copy() with one end here
// is asynchronous: whoever pins memory waits (DeviceEvent, Stream::sync) before touching it again.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(size_t bytes);
  void* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* data) const;
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_ = 0;
};

// A point in a stream's order. On a CPU stream all of this is free.
class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&&) noexcept;
  DeviceEvent& operator=(DeviceEvent&&) noexcept;

  void record(Stream& stream);   // behind all that `stream` has been given so far
  void wait_on(Stream& stream);  // what `stream` is given from now on runs behind the point
  void sync();                   // the host waits for the point
  bool done();                   // whether it has been passed; true where nothing was recorded

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A device's time between pairs of points in a stream's order, added up; the host never waits for
// it. Not in what a graph records. On a CPU stream it stands still.
class DeviceClock {
 public:
  DeviceClock();
  ~DeviceClock();
  DeviceClock(DeviceClock&&) noexcept;
  DeviceClock& operator=(DeviceClock&&) noexcept;

  void begin(Stream& stream);
  void end(Stream& stream);
  double seconds();  // of the pairs that have been passed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
