#include "kernels/cuda/device.h"

namespace weft {

namespace {
[[noreturn]] void unavailable() {
  throw Error(
      ErrorKind::kUsage,
      "--device cuda: this build has no CUDA backend; configure with -DWEFT_CUDA=ON, or use "
      "--device cpu");
}
}  // namespace

int cuda_device_count() { unavailable(); }
std::string cuda_versions() { return ""; }
Stream cuda_stream(int) { unavailable(); }

}  // namespace weft
