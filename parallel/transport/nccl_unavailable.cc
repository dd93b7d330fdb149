#include "parallel/transport/nccl.h"

namespace weft {

namespace {
[[noreturn]] void unavailable() {
  throw Error(ErrorKind::kUsage,
              "this build has no NCCL: install libnccl-dev and configure with -DWEFT_CUDA=ON, or "
              "use ranks on the CPU");
}
}  // namespace

std::vector<std::shared_ptr<Transport>> make_nccl_transports(std::span<const int>,
                                                             const NcclOptions&) {
  unavailable();
}

std::shared_ptr<Transport> make_nccl_transport(
    int, int, int, const std::function<std::string(const std::string&)>&, const NcclOptions&) {
  unavailable();
}

}  // namespace weft
