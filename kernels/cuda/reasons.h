#pragma once
// One line each for what a user can mend: no usable device, a device that the binary has no code
// for, and one whose memory is full.
#include <cuda_runtime_api.h>

#include <string>

namespace weft {

// Says why cudaGetDeviceCount found no device, and what helps: "the NVIDIA driver knows CUDA 12.4,
// ...". "" for a status that means something else.
std::string absence_of(cudaError_t status);

// Says, where a status means it, for which architectures the binary has code, and how to build it
// for others: "for which this binary has no code (...". "" for every other status.
std::string absent_code(cudaError_t status);

// The text of an Error(kMemory): "out of memory on cuda:0: 4.00 GiB requested, 0.06 of ...", with
// the flags that need less. `request` is what was asked: "4.00 GiB requested", or a failed call's
// text.
std::string shortage_on(int device, const std::string& request);

}  // namespace weft
