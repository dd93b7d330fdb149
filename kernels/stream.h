#pragma once
// Stream: where and in what order work runs. It carries the op table and, on a CPU, how many
// threads a call may use. Always a parameter, never a global.
#include <cstdint>

#include "kernels/tensor.h"

namespace weft {

struct Ops;

enum class Determinism : uint8_t {
  kFast,   // oneDNN may thread a call as it likes
  kFixed,  // rows are split by us at fixed places and each vendor call runs on one thread: the bits
           // do not depend on the number of threads
};

class Stream {
 public:
  // A stream that runs inline on the calling thread, helped by `threads` - 1 OpenMP threads.
  // threads 0 = all the machine has. `ops` null = cpu_ops().
  static Stream cpu(int threads = 0, Determinism determinism = Determinism::kFast,
                    const Ops* ops = nullptr);

  Device device() const { return device_; }
  const Ops& ops() const { return *ops_; }
  int threads() const { return threads_; }
  bool deterministic() const { return determinism_ == Determinism::kFixed; }
  void sync() const {}  // CPU work runs inline; a device stream waits here

 private:
  Device device_;
  const Ops* ops_ = nullptr;
  int threads_ = 1;
  Determinism determinism_ = Determinism::kFast;
};

}  // namespace weft
