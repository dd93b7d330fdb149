#pragma once
// ReadLimit: memory read once from end to end, with nothing done with it: the rate of this machine
// that what only reads weights or caches is a share of.
#include "kernels/stream.h"

namespace weft {

class ReadLimit {
 public:
  explicit ReadLimit(Stream& stream);  // 1 GiB of values, past every cache
  void run();
  double bytes() const { return static_cast<double>(memory_.view().bytes()); }

 private:
  Stream& stream_;
  Tensor memory_;
  float seen_ = 0;  // what was read, so that it must be
};

}  // namespace weft
