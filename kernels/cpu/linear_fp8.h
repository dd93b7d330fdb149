#pragma once
// Products of f8_e4m3 (WeightFormat::kFp8 and kFp8Tensor) for every CPU table: plain loops. No CPU
// has such products; this is what the CUDA backend is held against.
#include "kernels/linear.h"

namespace weft::cpu {

PackedLinear pack_linear_fp8(Stream& stream, const TensorView& weight, const TensorView& bias,
                             DType dtype, WeightFormat format);
void linear_fp8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                LinearActivation activation, const TensorView& out);

// out[i] = x[i] / scale to nearest; returns the scale: largest magnitude / 448, 0 for zeros, NaN
// where x holds a value that is not finite (out is 0 then).
float quantize_row_e4m3(const float* x, int64_t count, uint8_t* out);
// The same with the scale that all of x's tensor has.
void quantize_e4m3(const float* x, int64_t count, float scale, uint8_t* out);
// The larger of `most` and |x|; NaN where that is not finite.
float larger_e4m3(float most, float x);

}  // namespace weft::cpu
