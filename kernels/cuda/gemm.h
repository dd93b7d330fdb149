#pragma once
// Matrix products by a library: cuBLASLt (gemm_cublaslt.cc), or plain loops where tests run on a
// host. It does what the library does within the contract and refuses the rest; callers have
// kernels of their own for that.
#include <string>

#include "kernels/device_plan.h"

namespace weft::cuda {

// Rows with a dense last dimension; strides in elements.
struct GemmMatrix {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
};

// out[b, i, j] = alpha * x_scales[i] * w_scales[j] * sum over l of x[b, i, l] w[b, j, l] + bias[j],
// in f32 (never TF32; of f8_e4m3 as WeightFormat::kFp8 says), rounded once. Legal dtypes of x and w
// (alike) and out:
//   f32 to f32, bf16 to bf16 or f32, f8_e4m3 to bf16 or to f32 without bias, i8 to i32 (exact;
//   alpha 1, no bias).
// With `gelu` bf16 results, of bf16 or of f8_e4m3 with one scale, are gelu_tanh of that, in f32
// before they are rounded; other activations are the caller's.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t batch = 1;
  GemmMatrix x;    // [batch, m, k]
  GemmMatrix w;    // [batch, n, k]
  GemmMatrix out;  // [batch, m, n], no part of x or w
  float alpha = 1;
  bool gelu = false;
  const void* bias = nullptr;       // [n] of out's dtype, 16-byte aligned, or null
  const float* x_scales = nullptr;  // [m] and [n] of f8_e4m3, both or none
  const float* w_scales = nullptr;
  bool one_scale = false;   // they are [1] each
  size_t scratch_used = 0;  // bytes of the queue's scratch that hold the caller's data; the product
                            // takes kGemmWorkspace behind them
};

// Puts the product behind what the stream was given. False, and nothing done, where the library has
// no way to do it: an alignment it does not take (of 8-bit numbers rows must be 16-byte aligned and
// k, n multiples of 16), scales on a device without them. A shape's third call on a stream times a
// few of the library's ways and keeps the fastest, unless the stream is deterministic or being
// captured: then it stays the library's first.
bool gemm(const Stream& stream, const Gemm& gemm);

// Why the library refused the last product that it refused on this stream; or "".
std::string gemm_refusal(const Stream& stream);

}  // namespace weft::cuda
