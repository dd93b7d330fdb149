#include "kernels/ops.h"

namespace weft {

// This is a file of its own because the tests of a device link their own list instead.
std::vector<const Ops*> all_ops() {
  std::vector<const Ops*> all{&reference_ops(), &simd_ops()};
  if (&cpu_ops() != &reference_ops()) all.push_back(&cpu_ops());
  return all;
}

}  // namespace weft
