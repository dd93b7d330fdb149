#pragma once
// Rows to 8-bit numbers and sums of products back to results (linear.h, WeightFormat).
#include "kernels/linear.h"

namespace weft::cuda {

// What rows are rounded to; kE4m3AsBf16 are the numbers of kE4m3, which bf16 holds exactly.
enum class Numbers : uint8_t { kInt8, kE4m3, kE4m3AsBf16 };

// numbers [rows, stride]: those of x [rows, count] f32 or bf16, then zeros; scales [rows] f32.
// `stride` is a multiple of 16 and `numbers` 16-byte aligned. With `most`, of e4m3, every row has
// the scale of a tensor of that largest magnitude.
void quantize_rows(const Stream& stream, Numbers kind, const TensorView& x, void* numbers,
                   int64_t stride, float* scales, const uint32_t* most = nullptr);

// most = the bits of x's largest magnitude, or what they were where those are larger; more than
// infinity's where x holds what is not finite. Begin with 0.
void measure_rows(const Stream& stream, const TensorView& x, uint32_t* most);

// out = act(sums * (x_scales * w_scales) + bias), row by row. In place where both are f32 and the
// strides alike.
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

// out[i] = the e4m3 numbers[i] as bf16, exactly. `count` is a multiple of 16, both aligned to 16.
void widen_e4m3(const Stream& stream, const void* numbers, int64_t count, bf16* out);

}  // namespace weft::cuda
