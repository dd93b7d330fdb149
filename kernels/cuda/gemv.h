#pragma once
// GEMV, for up to 16 rows at a time (decoding a token, modulation vectors): reading the weights is
// most of the work, so each is read once per pass, at 16 bytes a thread. These kernels also do
// every GEMM that the library refuses.
#include "kernels/linear.h"

namespace weft::cuda {

// This many rows share one pass over the weights.
inline constexpr int64_t kGemvRows = 16;    // bf16 and e4m3: one tile of the tensor cores
inline constexpr int64_t kGemvDotRows = 4;  // f32 and i8: the sums of one thread

// out = act(x w^T * x_scales * w_scales + bias), for any number of rows.
struct Gemv {
  int64_t m = 0, n = 0, k = 0;
  const bf16* x = nullptr;  // [m, k], any stride
  int64_t x_stride = 0;
  const void* w = nullptr;  // [n, w_stride] bf16 or e4m3, rows of whole 16 bytes, zeros after k
  DType w_dtype = DType::kBF16;
  int64_t w_stride = 0;
  const float* x_scales = nullptr;  // [m] and [n], both or none
  const float* w_scales = nullptr;
  const float* bias = nullptr;  // [n] or null
  LinearActivation activation = LinearActivation::kNone;
  void* out = nullptr;
  DType out_dtype = DType::kBF16;  // or f32
  int64_t out_stride = 0;
};
void gemv(const Stream& stream, const Gemv& p);

// sums [m, n] = x w^T, from f32 to f32 or from i8 to i32.
struct GemvDot {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // or i8
  const void* x = nullptr;    // [m, k], any stride
  int64_t x_stride = 0;
  const void* w = nullptr;  // [n, w_stride], rows of whole 16 bytes, zeros after k
  int64_t w_stride = 0;
  void* sums = nullptr;
  int64_t sums_stride = 0;
};
void gemv_dot(const Stream& stream, const GemvDot& p);

}  // namespace weft::cuda
