#pragma once
// The emulated machine (README.md): tests set and query it here, and the stand-ins for the vendor's
// libraries submit their work here.
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace weft::emulated {

// Sets the machine for later calls. The default is 1 device of 8 GiB and a driver of CUDA 13.0;
// WEFT_EMULATED_DEVICES, WEFT_EMULATED_BYTES and WEFT_EMULATED_DRIVER (13000) in the environment
// change it. Another process takes WEFT_EMULATED_HELD bytes of each device as soon as this one asks
// for more than is left. With WEFT_EMULATED_NO_CODE the program has no kernels for the device.
void set_device_count(int count);
void set_device_bytes(size_t bytes);
// The most shared memory of a block; 227 KiB, as on compute capability 9.0, is the default and the
// most.
void set_shared_per_block(size_t bytes);
size_t device_bytes_used(int device);

// Enqueues work on a stream. It runs when something waits for the stream, and it may touch device
// memory.
cudaError_t submit(cudaStream_t stream, std::function<void()> work);

// Returns the number of kernels run so far.
uint64_t launches();
// Returns the number of graphs launched so far.
uint64_t graph_launches();
// Returns the number of copies between two devices that went through the host, because the device
// of their stream cannot reach the memory of the other.
uint64_t copies_through_host();
// True where a network card could read and write device memory at this address.
bool reached_by_network(const void* data);
// Describes the device's last fault, with the kernel and the thread, or "". cudaDeviceReset clears
// it.
std::string device_error();

}  // namespace weft::emulated
