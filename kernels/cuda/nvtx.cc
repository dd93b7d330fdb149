#include "kernels/cuda/nvtx.h"

#include <nvtx3/nvToolsExt.h>

namespace weft::cuda {

void push_range(const char* name) { nvtxRangePushA(name); }
void pop_range() { nvtxRangePop(); }

}  // namespace weft::cuda
