#pragma once
// The emulated machine (README.md): what tests set and ask, and what stands in for the vendor's
// libraries puts its work into.
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace weft::emulated {

// Takes effect for calls from now on; the defaults are 1 device of 8 GiB. WEFT_EMULATED_DEVICES and
// WEFT_EMULATED_BYTES in the environment say otherwise.
void set_device_count(int count);
void set_device_bytes(size_t bytes);
size_t device_bytes_used(int device);

// Puts work into a stream. It runs when somebody waits and may touch device memory.
cudaError_t submit(cudaStream_t stream, std::function<void()> work);

// Kernels run so far.
uint64_t launches();
// Graphs given so far.
uint64_t graph_launches();
// What went wrong on the device last, with the kernel and the thread; "" for nothing.
// cudaDeviceReset forgets it.
std::string device_error();

}  // namespace weft::emulated
