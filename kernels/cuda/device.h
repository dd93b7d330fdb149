#pragma once
// The CUDA backend's door. Built from the other files here where WEFT_CUDA is on, else from
// unavailable.cc.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm_limit.h"
#include "kernels/stream.h"

namespace weft {

// The number of CUDA devices; throws Error(kUsage) naming the build option where there is no
// backend.
int cuda_device_count();

// "driver 12.4, toolkit 12.4"; "" where there is no backend.
std::string cuda_versions();

// "NVIDIA H200, 139.8 GiB, compute capability 9.0".
std::string cuda_device_words(int index);

// What identifies the physical device behind visible device `index`: its UUID, or zeros where the
// driver gives none, and its PCI address, "0000:3b:00.0".
struct CudaDeviceNames {
  std::array<unsigned char, 16> uuid{};
  std::string pci;
};
CudaDeviceNames cuda_device_names(int index);

// Whether attention in 8 bits runs on CUDA device `index`.
bool cuda_attends_in_fp8(int index);

// A stream of its own on CUDA device `index`; its ops are cuda_ops(). `threads`: of the host, for
// what is packed and converted there. Error(kUsage) where there is no such device or no backend.
Stream cuda_stream(int index, Determinism determinism = Determinism::kFast, int threads = 0);

// `bytes` from one device's memory, or the host's, to another's, in the stream's order.
void cuda_copy_bytes(Stream& stream, const void* from, void* to, size_t bytes);

// kernels/gemm_limit.h's, by cuBLASLt.
std::unique_ptr<GemmLimit> make_cuda_gemm_limit(Stream& stream, DType dtype, int64_t rows,
                                                int64_t in, int64_t out);

// Whether the vendor's libraries take plain problems of the kinds that models have. Where one does
// not, kernels of ours do it, slower.
struct LibraryAnswer {
  std::string family, what;  // "attention", "bf16, heads of 128"
  std::string refusal;       // "": it is taken
};
std::vector<LibraryAnswer> ask_cuda_libraries(Stream& stream);

// The op table of the CUDA backend. Error(kUsage) where there is none.
const Ops& cuda_ops();

}  // namespace weft
