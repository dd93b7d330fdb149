#pragma once
// Products of 8-bit numbers (WeightFormat::kInt8): the reference, oneDNN's, and what both share.
#include "kernels/linear.h"

namespace weft::cpu {

// Plain loops; exact sums, so every other version has the same.
PackedLinear pack_linear_int8(Stream& stream, const TensorView& weight, const TensorView& bias,
                              DType dtype);
void linear_int8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                 LinearActivation activation, const TensorView& out);

// Where has_int8_dot_products().
PackedLinear pack_linear_int8_onednn(Stream& stream, const TensorView& weight,
                                     const TensorView& bias, DType dtype);
void linear_int8_onednn(Stream& stream, const TensorView& x, const PackedLinear& packed,
                        LinearActivation activation, const TensorView& out);

// The weights as numbers of `format` [out, in] kI8 or kF8E4M3, their scales [out] f32; the rest of
// `packed`.
struct EightBitWeights {
  Tensor values, scales;
};
EightBitWeights quantize_weights(Stream& stream, const TensorView& weight, const TensorView& bias,
                                 DType dtype, WeightFormat format, PackedLinear& packed);

// out[i] = round(x[i] / scale), to nearest even; returns the scale: largest magnitude / 127, 0 for
// zeros, NaN where x holds a value that is not finite (out is 0 then).
float quantize_row_reference(const float* x, int64_t count, int8_t* out);
// The same in Highway, plus 128 and without a sign.
float quantize_row(const float* x, int64_t count, uint8_t* out);

// One row of sums to results: out = act((sums[i] - corrections[i]) * (scale * scales[i]) +
// bias[i]), in place as f32.
struct FinishInt8 {
  int64_t count = 0;
  const int32_t* sums = nullptr;
  const int32_t* corrections = nullptr;
  float scale = 0;
  const float* scales = nullptr;
  const float* bias = nullptr;  // or null
  LinearActivation activation = LinearActivation::kNone;
  float* out = nullptr;
};
void finish_int8(const FinishInt8& row);

}  // namespace weft::cpu
