#pragma once
// DeviceGraph: a stretch of a device stream's work, recorded once and given again as a whole (CUDA
// graphs): one call of the host instead of one per op.
#include <functional>
#include <memory>

#include "kernels/stream.h"

namespace weft {

// Whether what can be recorded is; results are the same.
enum class Graphs : uint8_t { kRecord, kNone };

class DeviceGraph {
 public:
  DeviceGraph();
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&&) noexcept;
  DeviceGraph& operator=(DeviceGraph&&) noexcept;

  explicit operator bool() const { return impl_ != nullptr; }

  // Records what `work` gives the stream; nothing of it runs. It may neither wait nor allocate, and
  // of host memory copies pinned alone, which is read anew at every launch. All that it touches
  // must stay where it is: arenas and a queue's scratch do. Error where the stream is no device's,
  // or where `work` throws; then nothing is recorded.
  void record(Stream& stream, const std::function<void()>& work);
  // Puts all of it behind what the stream was given.
  void launch(Stream& stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
