#pragma once
// The interface of the CUDA backend. With WEFT_CUDA it is built from the other files of this
// folder, else from unavailable.cc.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm_limit.h"
#include "kernels/stream.h"

namespace weft {

// Returns the number of CUDA devices. Throws Error(kUsage), naming the build option, if there is no
// backend.
int cuda_device_count();
// Says why there is no device, and what helps: no backend, no or an old driver, no GPU. "" where
// there is one.
std::string cuda_absence();

// Returns "driver 12.4, toolkit 12.4", or "" if there is no backend.
std::string cuda_versions();

// Returns for example "NVIDIA H200, 139.8 GiB, compute capability 9.0".
std::string cuda_device_description(int index);

// Identifies the physical device behind visible device `index` by its UUID (zeros where the driver
// gives none) and its PCI address, such as "0000:3b:00.0".
struct CudaDeviceNames {
  std::array<unsigned char, 16> uuid{};
  std::string pci;
};
CudaDeviceNames cuda_device_names(int index);

// True if 8-bit attention runs on CUDA device `index`.
bool cuda_attends_in_fp8(int index);

// The kernels that compute attention on a device: cuDNN's, our own for Hopper (wgmma), or our own
// for any device (mma). kAuto chooses by shape and device. A call that the chosen kernels do not
// take goes to the next of them.
enum class AttentionPath : uint8_t { kAuto, kLibrary, kWgmma, kMma };
const char* to_string(AttentionPath path);
// Sets the path of streams that are made afterwards.
void set_cuda_attention_path(AttentionPath path);
// The path that the stream's last call took; kAuto before the first.
AttentionPath last_cuda_attention_path(const Stream& stream);

// Keeps the code that cuDNN compiles for convolutions and attention in a folder, from where later
// processes read it. The folder is made when it is needed; without one, or where it cannot be
// written, every process compiles.
void keep_cuda_plans(const std::string& folder);

// Makes a new stream on CUDA device `index`; its ops are cuda_ops(). `threads` is the number of
// host threads that pack and convert data. Throws Error(kUsage) if there is no such device or no
// backend.
Stream cuda_stream(int index, Determinism determinism = Determinism::kFast, int threads = 0);

// Makes a device the calling thread's. Our own ops do so themselves; a library that copies device
// memory in the thread that calls it needs it.
void make_cuda_device_current(int index);

// Copies `bytes` from the memory of one device, or of the host, to another's, in the stream's
// order.
void cuda_copy_bytes(Stream& stream, const void* from, void* to, size_t bytes);

// Makes the GemmLimit of kernels/gemm_limit.h, by cuBLASLt.
std::unique_ptr<GemmLimit> make_cuda_gemm_limit(Stream& stream, DType dtype, int64_t rows,
                                                int64_t in, int64_t out);

// Reports whether the vendor's libraries accept plain problems of the kinds that models have. Where
// one refuses, our own kernels do the work, more slowly.
struct LibraryAnswer {
  std::string family, what;  // "attention", "bf16, heads of 128"
  std::string refusal;       // "" if the library accepts it
};
std::vector<LibraryAnswer> ask_cuda_libraries(Stream& stream);

// Returns the op table of the CUDA backend. Throws Error(kUsage) if there is none.
const Ops& cuda_ops();

}  // namespace weft
