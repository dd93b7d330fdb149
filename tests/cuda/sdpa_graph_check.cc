// Proves, without a device, that cuDNN has engines for our attention graphs on an H200: its
// heuristics propose configurations from a description of the device and its checks accept them.
// A plan's code is made too; only loading it needs a driver, so that alone may fail here.
#include <cstdio>
#include <string>

#include "kernels/cuda/sdpa_graph.h"

namespace weft::cuda {
namespace {

// What cudaGetDeviceProperties says of an H200, in the words of cuDNN 9.19.
constexpr const char* kH200 = R"({
"deviceName": "NVIDIA H200", "cudaDeviceId": 0, "pciDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
"isTccDriver": 0, "supportCoopLaunch": 1, "warpSize": 32, "multiProcessorCount": 132,
"totalGlobalMem": 150754820096, "l2CacheSize": 62914560, "maxCtasPerSM": 32, "maxThreadsPerSM": 2048,
"maxRegistersPerSM": 65536, "regsPerBlock": 65536, "maxThreadsPerBlock": 1024,
"maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
"reservedSharedMemoryPerBlock": 1024, "memClockRateKHz": 3201000, "smClockRateKHz": 1980000,
"maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535]})";

SdpaShape shape_of(int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads, int64_t size,
                   bool lse) {
  const int64_t row = heads * size, kv_row = kv_heads * size;
  return {queries, keys, heads,  kv_heads, size, row,  size,
          kv_row,  size, kv_row, size,     row,  size, lse};
}

bool check(const SdpaShape& shape, const SdpaTarget& target) {
  size_t engines = 0;
  bool made = false;
  std::string reason;
  try {
    const std::vector<CudnnDescriptor> configurations = propose_sdpa(shape, target);
    engines = configurations.size();
    if (engines > 0) make_sdpa_plan(configurations[0], target);
    made = engines > 0;
  } catch (const CudnnRefusal& refusal) {
    made = refusal.status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
    reason = refusal.text;
  }
  std::printf("%s queries %ld keys %ld heads %ld/%ld size %ld%s: %zu engines %s\n",
              made ? "ok  " : "FAIL", static_cast<long>(shape.queries),
              static_cast<long>(shape.keys), static_cast<long>(shape.heads),
              static_cast<long>(shape.kv_heads), static_cast<long>(shape.size),
              shape.lse ? " lse" : "", engines, made ? "" : reason.c_str());
  return made;
}

int run() {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<int64_t>(std::char_traits<char>::length(kH200)), kH200);
  device.finalize();
  const SdpaTarget target{.device = &device};
  bool all = true;
  for (bool lse : {false, true})
    for (int64_t heads : {12, 40}) {
      for (int64_t queries : {1560, 32760, 75600})
        for (int64_t keys : {queries, int64_t{512}})
          all &= check(shape_of(queries, keys, heads, heads, 128, lse), target);
    }
  all &= check(shape_of(4096, 4096, 12, 2, 128, false), target);
  all &= check(shape_of(257, 257, 16, 16, 80, false), target);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace weft::cuda

int main() {
  try {
    return weft::cuda::run();
  } catch (const weft::cuda::CudnnRefusal& refusal) {
    std::printf("%s\n", refusal.text.c_str());
    return 1;
  }
}
