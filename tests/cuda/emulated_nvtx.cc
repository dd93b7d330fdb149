#include "tests/cuda/emulated_nvtx.h"

#include "kernels/cuda/nvtx.h"

namespace weft {

test::Ranges& test::ranges() {
  static thread_local Ranges ranges;
  return ranges;
}

void cuda::push_range(const char* name) {
  test::ranges().open.emplace_back(name);
  ++test::ranges().pushed[name];
}
void cuda::pop_range() { test::ranges().open.pop_back(); }

}  // namespace weft
