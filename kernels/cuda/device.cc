#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "kernels/cuda/queue.h"
#include "kernels/cuda/reasons.h"
#include "kernels/cuda/tables.h"
#include "kernels/device_plan.h"

namespace weft {

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  cudaGetLastError();
  if (absence_of(status).empty())
    throw Error(ErrorKind::kInternal,
                std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status));
  return 0;
}

std::string cuda_absence() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  return absence_of(status);
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

std::string cuda_device_description(int index) {
  cudaDeviceProp properties{};
  WEFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  char text[384];
  std::snprintf(text, sizeof text, "%s, %.1f GiB, compute capability %d.%d", properties.name,
                static_cast<double>(properties.totalGlobalMem) / (1 << 30), properties.major,
                properties.minor);
  return text;
}

CudaDeviceNames cuda_device_names(int index) {
  cudaDeviceProp properties{};
  WEFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  CudaDeviceNames names;
  static_assert(sizeof names.uuid == sizeof properties.uuid.bytes);
  std::memcpy(names.uuid.data(), properties.uuid.bytes, sizeof names.uuid);
  char text[64];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID,
                properties.pciDeviceID);
  names.pci = text;
  return names;
}

bool cuda_attends_in_fp8(int index) {
  int major = 0;
  WEFT_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  return major == 9;
}

DeviceTraits device_traits(Device device) {
  cudaDeviceProp properties{};
  WEFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index));
  return {.name = properties.name,
          .multiprocessors = properties.multiProcessorCount,
          .major = properties.major,
          .minor = properties.minor,
          .bytes = properties.totalGlobalMem};
}

void make_cuda_device_current(int index) { WEFT_CUDA_CHECK(cudaSetDevice(index)); }

void cuda_copy_bytes(Stream& stream, const void* from, void* to, size_t bytes) {
  WEFT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_queue(stream).stream()));
}

const Ops& cuda_ops() {
  static const Ops ops = [] {
    Ops made{};
    made.name = "cuda";
    cuda::fill_norm(made);
    cuda::fill_group_norm(made);
    cuda::fill_linear(made);
    cuda::fill_attention(made);
    cuda::fill_merge(made);
    cuda::fill_rope(made);
    cuda::fill_pointwise(made);
    cuda::fill_conv(made);
    cuda::fill_copy(made);
    cuda::fill_row_code(made);
    return made;
  }();
  return ops;
}

}  // namespace weft
