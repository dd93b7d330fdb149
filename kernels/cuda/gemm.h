#pragma once
// GEMM by a library: cuBLASLt (gemm_cublaslt.cc), or plain loops where tests run on a host. gemm()
// refuses what the library cannot do within this contract; callers have kernels of their own for
// that.
#include <string>

#include "kernels/device_plan.h"

namespace weft::cuda {

// A GemmMatrix has rows with a dense last dimension; strides are in elements.
struct GemmMatrix {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
};

// out[b, i, j] = alpha * x_scales[i] * w_scales[j] * sum over l of x[b, i, l] w[b, j, l] + bias[j],
// in f32 (never TF32; f8_e4m3 adds as WeightFormat::kFp8 says), rounded once. Legal dtypes of x and
// w (alike) and out: f32 to f32, bf16 to bf16 or f32, f8_e4m3 to bf16 or to f32 without bias, i8 to
// i32 (exact; alpha 1, no bias). With `gelu`, bf16 results (from bf16, or from f8_e4m3 with one
// scale) are gelu_tanh of that, computed in f32 before rounding with a tanh known to 2^-10.9; other
// activations are up to the caller. With `add`, an f32 result is added to what lies in out.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  GemmMatrix x{};    // [batch, m, k]
  GemmMatrix w{};    // [batch, n, k]
  GemmMatrix out{};  // [batch, m, n]; may not overlap x or w
  float alpha = 1;
  bool gelu = false;
  bool add = false;
  const void* bias = nullptr;       // [n] of out's dtype, 16-byte aligned, or null
  const float* x_scales = nullptr;  // [m] and [n] for f8_e4m3; both or none
  const float* w_scales = nullptr;
  bool one_scale = false;   // the scales are [1] each
  size_t scratch_used = 0;  // the queue's scratch holds this many bytes of the caller's data;
                            // the GEMM uses kGemmWorkspace bytes after them
};

// Enqueues the GEMM on the stream. Returns false and does nothing if the library cannot do it: an
// alignment it does not accept (rows of 8-bit elements must be 16-byte aligned and k, n multiples
// of 16), or scales on a device without them. The third call of a large shape on a stream times
// those of the library's algorithms whose result has the bits of its first choice, and keeps the
// fastest. If the stream is deterministic or being captured, or the call adds, the first choice
// stays.
bool gemm(const Stream& stream, const Gemm& gemm);

// Says why the library refused the last GEMM that it refused on this stream, or "".
std::string gemm_refusal(const Stream& stream);

}  // namespace weft::cuda
