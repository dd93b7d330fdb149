#include "kernels/cuda/reasons.h"

#include <cstdlib>

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace weft {

namespace {

struct StatusReason {
  cudaError_t status;
  const char* text;
};
constexpr StatusReason kReasons[] = {
    {cudaErrorStubLibrary,
     "libcuda.so.1 is the toolkit's stub: take its folder out of LD_LIBRARY_PATH"},
    {cudaErrorDevicesUnavailable, "every GPU is busy or closed to this user (nvidia-smi -q)"},
    {cudaErrorSystemNotReady, "the GPUs are not ready: nvidia-fabricmanager must run"},
    {cudaErrorSystemDriverMismatch,
     "the NVIDIA driver's library and its kernel module differ: restart the machine"},
    {cudaErrorCompatNotSupportedOnDevice,
     "CUDA's compatibility package does not know this GPU: remove cuda-compat"},
    {cudaErrorUnknown, "the NVIDIA driver's kernel module does not answer (nvidia-smi)"},
};

}  // namespace

std::string absence_of(cudaError_t status) {
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    if (driver == 0) return "no NVIDIA driver is installed (libcuda.so.1 is missing)";
    return "the NVIDIA driver is too old (" + cuda_versions() +
           "): install one that knows the toolkit's CUDA; 13.0 needs 580";
  }
  if (status == cudaErrorNoDevice) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return visible ? "CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "', which names no GPU"
                   : "the NVIDIA driver finds no GPU (nvidia-smi lists them)";
  }
  for (const StatusReason& reason : kReasons)
    if (reason.status == status) return reason.text;
  return "";
}

std::string absent_code(cudaError_t status) {
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction &&
      status != cudaErrorUnsupportedPtxVersion)
    return "";
  cudaGetLastError();  // clears the error, which later calls would report again
  return "for which this binary has no code (it was compiled for " WEFT_CUDA_CODE
         "); build it on this machine with -DWEFT_CUDA_ARCHITECTURES=native";
}

std::string shortage_on(int device, const std::string& request) {
  int before = 0;
  size_t free = 0, total = 0;
  cudaGetLastError();  // clears the error, which later calls would report again
  cudaGetDevice(&before);
  cudaSetDevice(device);
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  cudaGetLastError();
  cudaSetDevice(before);
  return "out of memory on cuda:" + std::to_string(device) + ": " + request + ", " +
         (known ? format_bytes(free) + " of " + format_bytes(total) + " free" : "nothing free") +
         " (nvidia-smi lists who holds the rest). Try --resident-layers 2 or --weights fp8 or "
         "--memory-limit below what is free or a smaller --size";
}

}  // namespace weft
