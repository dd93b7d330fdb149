#pragma once
// A ReadLimit reads memory once from end to end and does nothing with it. Its rate is the limit for
// ops that are bound by reading weights or caches.
#include "kernels/stream.h"

namespace weft {

class ReadLimit {
 public:
  explicit ReadLimit(Stream& stream);  // 1 GiB of values, more than any cache holds
  void run();
  double bytes() const { return static_cast<double>(memory_.view().bytes()); }

 private:
  Stream& stream_;
  Tensor memory_;
  float seen_ = 0;  // depends on what was read, so that the compiler keeps the reads
};

}  // namespace weft
