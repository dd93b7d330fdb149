#pragma once
// GEMMs of f8_e4m3 (WeightFormat::kFp8 and kFp8Tensor) for every CPU table, as plain loops. No CPU
// multiplies e4m3 in hardware; this is the reference for the CUDA backend.
#include "kernels/linear.h"

namespace weft::cpu {

void linear_fp8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                LinearActivation activation, const TensorView& out);

// out[i] = x[i] / scale, rounded to nearest. Returns the scale: the largest magnitude / 448, 0 if
// all values are zero, or NaN if x holds NaN or Inf (out is 0 then).
float quantize_row_e4m3(const float* x, int64_t count, uint8_t* out);
// Does the same with one given scale, that of x's whole tensor.
void quantize_e4m3(const float* x, int64_t count, float scale, uint8_t* out);
// Returns the larger of `most` and |x|; NaN if either is not finite.
float larger_e4m3(float most, float x);

}  // namespace weft::cpu
