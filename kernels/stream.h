#pragma once
// A Stream says where and in what order work runs. It carries the op table and, on a CPU, the
// number of threads a call may use; on a device, its queue. It is always a parameter, never a
// global.
#include <cstdint>
#include <memory>

#include "kernels/device_memory.h"
#include "kernels/tensor.h"

namespace weft {

struct Ops;

enum class Determinism : uint8_t {
  kFast,   // oneDNN may thread a call as it likes
  kFixed,  // rows are split at fixed places and each vendor call runs on one thread: the bits
           // do not depend on the number of threads
};

class Stream {
 public:
  // Makes a stream that runs inline on the calling thread, helped by `threads` - 1 OpenMP threads.
  // threads 0 = all the machine has. `ops` null = cpu_ops().
  static Stream cpu(int threads = 0, Determinism determinism = Determinism::kFast,
                    const Ops* ops = nullptr);
  // Makes a stream that enqueues its work on `queue`; copies of it share the queue. Backends call
  // this.
  static Stream of_queue(Device device, std::shared_ptr<DeviceQueue> queue, const Ops& ops,
                         int threads, Determinism determinism);

  // Returns a stream on the same queue that uses another op table of its device (metered_ops()).
  Stream with(const Ops& ops) const {
    Stream stream = *this;
    stream.ops_ = &ops;
    return stream;
  }

  Device device() const { return device_; }
  const Ops& ops() const { return *ops_; }
  int threads() const { return threads_; }
  bool deterministic() const { return determinism_ == Determinism::kFixed; }
  DeviceQueue* queue() const { return queue_.get(); }  // null on a CPU
  // Waits for the device. Work on a CPU is done when its call returns.
  void sync() const {
    if (queue_) queue_->sync();
  }

 private:
  Device device_;
  const Ops* ops_ = nullptr;
  int threads_ = 1;
  Determinism determinism_ = Determinism::kFast;
  std::shared_ptr<DeviceQueue> queue_;
};

}  // namespace weft
