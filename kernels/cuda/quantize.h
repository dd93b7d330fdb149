#pragma once
// Quantizes rows to 8 bits, and turns GEMM sums back into results (linear.h, WeightFormat).
#include "kernels/linear.h"

namespace weft::cuda {

// The type that rows are rounded to. kE4m3AsBf16 stores the values of kE4m3 as bf16, which holds
// them exactly.
enum class QuantizedType : uint8_t { kInt8, kE4m3, kE4m3AsBf16 };

// Rows of quantized numbers [rows, stride], 16-byte aligned, and their scales [rows]. `stride` is a
// multiple of 16.
struct QuantizedRows {
  QuantizedType type;
  void* numbers;
  int64_t stride;
  float* scales;
};

// Fills `to` with x [rows, count] (f32 or bf16) in 8 bits, then zeros. If `most` is given (for
// e4m3), every row gets the scale of a tensor with that largest magnitude.
void quantize_rows(const Stream& stream, const TensorView& x, const QuantizedRows& to,
                   const uint32_t* most = nullptr);

// Raises *most to the bits of x's largest magnitude, or beyond infinity's bits if x holds NaN or
// Inf. The caller sets it to 0 first.
void measure_rows(const Stream& stream, const TensorView& x, uint32_t* most);

// out = act(sums * (x_scales * w_scales) + bias), row by row. It may run in place if both are f32
// and the strides are equal.
struct FinishRows {
  int64_t rows = 0, columns = 0;
  const void* sums = nullptr;  // f32, or i32 where `whole`
  bool whole = false;
  int64_t sums_stride = 0;          // elements
  const float* x_scales = nullptr;  // [rows] and [columns], both or none
  const float* w_scales = nullptr;
  const float* bias = nullptr;  // [columns] or null
  LinearActivation activation = LinearActivation::kNone;
  void* out = nullptr;
  DType out_dtype = DType::kBF16;  // or f32
  int64_t out_stride = 0;
};
void finish_rows(const Stream& stream, const FinishRows& rows);

// out[i] = the e4m3 value numbers[i] as bf16, exactly. `count` is a multiple of 16, and both are
// 16-byte aligned.
void widen_e4m3(const Stream& stream, const void* numbers, int64_t count, bf16* out);

}  // namespace weft::cuda
