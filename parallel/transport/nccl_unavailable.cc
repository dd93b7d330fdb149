// Replaces nccl.cc where NCCL is not built.
#include "kernels/check.h"
#include "parallel/transport/nccl.h"

namespace weft {

bool nccl_built() { return false; }
std::string nccl_library() { return {}; }
void prepare_nccl_environment() {}

std::shared_ptr<Transport> make_nccl(std::shared_ptr<Transport>, Device, NcclSums) {
  throw Error(ErrorKind::kUsage,
              "this build has no NCCL: install libnccl-dev and configure with -DWEFT_CUDA=ON; "
              "legal here: --transport mpi, ucx");
}

}  // namespace weft
