#pragma once
// Describes an H200 to cuDNN, so that plans can be made without one.
#include <cstdio>
#include <string>

#include "kernels/cuda/cudnn.h"

namespace weft::cuda {

// The properties that cudaGetDeviceProperties reports for an H200, in the JSON format of cuDNN
// 9.19.
inline constexpr const char* kH200 = R"({
"deviceName": "NVIDIA H200", "cudaDeviceId": 0, "pciDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
"isTccDriver": 0, "supportCoopLaunch": 1, "warpSize": 32, "multiProcessorCount": 132,
"totalGlobalMem": 150754820096, "l2CacheSize": 62914560, "maxCtasPerSM": 32, "maxThreadsPerSM": 2048,
"maxRegistersPerSM": 65536, "regsPerBlock": 65536, "maxThreadsPerBlock": 1024,
"maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
"reservedSharedMemoryPerBlock": 1024, "memClockRateKHz": 3201000, "smClockRateKHz": 1980000,
"maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535]})";

inline CudnnDescriptor describe_h200() {
  CudnnDescriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<int64_t>(std::char_traits<char>::length(kH200)), kH200);
  device.finalize();
  return device;
}

// Returns run()'s result. If cuDNN refuses the description itself, prints the reason on standard
// output and returns 1.
inline int exit_code_of(int (*run)()) {
  try {
    return run();
  } catch (const CudnnRefusal& refusal) {
    std::printf("%s\n", refusal.text.c_str());
    return 1;
  }
}

}  // namespace weft::cuda
