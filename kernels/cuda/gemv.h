#pragma once
// Products of few rows (decoding a token, modulation vectors): reading the weights is the work, so
// they are read once, at 16 bytes a thread. Also what does every product that the library refuses.
#include "kernels/linear.h"

namespace weft::cuda {

// So many rows share one pass over the weights.
inline constexpr int64_t kGemvRows = 16;    // of bf16: one tile of the tensor cores
inline constexpr int64_t kGemvDotRows = 4;  // of f32 and whole numbers: a thread's sums

// out = act(x w^T * x_scales * w_scales + bias), any number of rows.
struct Gemv {
  int64_t m = 0, n = 0, k = 0;
  const bf16* x = nullptr;  // [m, k], any stride
  int64_t x_stride = 0;
  const void* w = nullptr;  // [n, w_stride] bf16 or e4m3, rows of whole 16 bytes, zeros behind k
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

// sums [m, n] = x w^T of f32, or of i8 to i32.
struct GemvDot {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // or i8
  const void* x = nullptr;    // [m, k], any stride
  int64_t x_stride = 0;
  const void* w = nullptr;  // [n, w_stride], rows of whole 16 bytes, zeros behind k
  int64_t w_stride = 0;
  void* sums = nullptr;
  int64_t sums_stride = 0;
};
void gemv_dot(const Stream& stream, const GemvDot& p);

}  // namespace weft::cuda
