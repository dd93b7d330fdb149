#pragma once
// The emulated machine (README.md): tests set and query it here, and the stand-ins for the vendor's
// libraries submit their work here.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
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

// NCCL (emulated/nccl.h). A host call that waits while no message moves for
// WEFT_EMULATED_NCCL_SECONDS (60) ends in a fault that names the messages that have begun.
// Makes the communicators of this process on a device fail: their messages do not move any more,
// and ncclCommGetAsyncError answers `result`, until they are aborted. WEFT_EMULATED_NCCL_FAIL=1:7
// does it to device 1 of each process after 7 messages, sent and received, with ncclRemoteError.
void fail_nccl(int device, ncclResult_t result);
// Return what this process has begun to send, without the parts of sums.
uint64_t nccl_messages();
uint64_t nccl_bytes();
// Returns the number of NCCL's kernels that have begun: one for each group and communicator.
uint64_t nccl_groups();
int live_nccl_communicators();

}  // namespace weft::emulated
