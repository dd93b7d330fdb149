#pragma once
// This header declares device memory and the order of work on a device. A CPU needs none of it: its
// memory is the process's, and its work runs inline. The functions are implemented by the CUDA
// backend (cuda/memory.cc); without it every function throws (cuda/unavailable.cc).
#include <cstddef>
#include <memory>

#include "kernels/tensor.h"

namespace weft {

class Stream;

// A DeviceQueue is one ordered queue of work on a device. The backend's implementation also holds
// the library handles and the workspace.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  virtual void sync() = 0;  // waits until all work given so far is done
  virtual void trim() {}    // frees the scratch of single ops; waits for its work
  virtual int multiprocessors() const = 0;
};

// Returns zeroed, 256-byte aligned memory that every stream of the device may use at once. Throws
// Error(kMemory) with the wanted and the free bytes. Freeing waits for the device, or keeps the
// memory for the next call where messages wait (cuda/message_queues.h), so neither belongs in a
// step.
void* device_malloc(Device device, size_t bytes);
void device_free(Device device, void* data, size_t bytes);

struct DeviceMemoryInfo {
  size_t free = 0, total = 0;
};
DeviceMemoryInfo device_memory_info(Device device);

// DeviceUse counts the bytes this process holds on a device through device_malloc and DeviceRange,
// and their maximum since the last reset: tensors, arenas and the scratch of ops. It leaves out the
// driver's context, code and graphs.
struct DeviceUse {
  size_t live = 0, peak = 0;
};
DeviceUse device_use(Device device);
void reset_device_use_peak(Device device);

// A DeviceRange reserves addresses without memory behind them; commit() adds the memory. An Arena
// lies in one, so that its addresses stay the same over steps, as captured graphs require.
class DeviceRange {
 public:
  DeviceRange(Device device, size_t limit);
  ~DeviceRange();
  DeviceRange(const DeviceRange&) = delete;
  DeviceRange& operator=(const DeviceRange&) = delete;

  char* base() const { return base_; }
  size_t committed() const { return committed_; }
  void commit(size_t bytes);  // gives the first `bytes` (at least) memory; throws Error(kMemory)
  void trim(size_t bytes);    // frees the memory after them; waits for the queues of the device

 private:
  struct Pieces;
  Device device_;
  size_t limit_ = 0, committed_ = 0;
  char* base_ = nullptr;
  std::unique_ptr<Pieces> pieces_;
};

// PinnedMemory is host memory that a device copies from and to while the host goes on. A copy()
// with one end here is asynchronous: the owner must wait (DeviceEvent, Stream::sync) before
// touching the memory again.
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

// A DeviceEvent is a point in a stream's order. On a CPU stream every call is free.
class DeviceEvent {
 public:
  DeviceEvent();
  ~DeviceEvent();
  DeviceEvent(DeviceEvent&&) noexcept;
  DeviceEvent& operator=(DeviceEvent&&) noexcept;

  void record(Stream& stream);   // the point lies after all work `stream` has been given so far
  void wait_on(Stream& stream);  // work that `stream` is given from now on runs after the point
  void sync();                   // the host waits for the point
  bool done();  // true once the point has been passed, or where nothing was recorded

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A DeviceClock adds up the device's time between pairs of points in a stream's order; the host
// never waits for it. It may not be used inside a recorded graph. On a CPU stream it stays at zero.
class DeviceClock {
 public:
  DeviceClock();
  ~DeviceClock();
  DeviceClock(DeviceClock&&) noexcept;
  DeviceClock& operator=(DeviceClock&&) noexcept;

  void begin(Stream& stream);
  void end(Stream& stream);
  double seconds();  // the sum over the pairs that have been passed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
