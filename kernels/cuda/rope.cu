#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tables.h"

namespace weft::cuda {

void fill_rope(Ops&) {}

}  // namespace weft::cuda
