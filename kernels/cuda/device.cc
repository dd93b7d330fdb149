#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

namespace weft {

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) return 0;
  if (status != cudaSuccess)
    throw Error(ErrorKind::kInternal,
                std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status));
  return count;
}

std::string cuda_versions() {
  const auto text = [](int version) {  // 12040 is 12.4
    return version ? std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10)
                   : std::string("none");
  };
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return "driver " + text(driver) + ", toolkit " + text(runtime);
}

Stream cuda_stream(int index) {
  const int count = cuda_device_count();
  if (index >= count)
    throw Error(ErrorKind::kUsage, "--device cuda:" + std::to_string(index) + ": the machine has " +
                                       std::to_string(count) + " CUDA devices");
  throw Error(ErrorKind::kUsage,
              "--device cuda: the CUDA op table is not built yet; use --device cpu");
}

}  // namespace weft
