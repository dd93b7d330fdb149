#pragma once
// A DeviceGraph is a stretch of a device stream's work that is recorded once and launched again as
// a whole (a CUDA graph): one call of the host instead of one per op.
#include <functional>
#include <memory>

#include "kernels/stream.h"

namespace weft {

// kRecord records every stretch of work that can be recorded. The results are the same either way.
enum class Graphs : uint8_t { kRecord, kNone };

class DeviceGraph {
 public:
  DeviceGraph();
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&&) noexcept;
  DeviceGraph& operator=(DeviceGraph&&) noexcept;

  explicit operator bool() const { return impl_ != nullptr; }

  // Records what `work` enqueues on the stream; none of it runs yet. `work` may neither wait nor
  // allocate, and the only host memory it may copy is pinned memory, which is read anew at every
  // launch. Everything it touches must keep its address, as arenas and a queue's scratch do. Throws
  // Error if the stream is not a device's or if `work` throws; then nothing is recorded. Calls of
  // other threads that wait for the whole device (a library's, for example) invalidate a recording:
  // `work` is then called once more, and if that is lost too, record() returns false and the caller
  // runs the work itself.
  bool record(Stream& stream, const std::function<void()>& work);
  // Enqueues the recorded work after everything the stream has been given.
  void launch(Stream& stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
