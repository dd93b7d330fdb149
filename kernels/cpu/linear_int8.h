#pragma once
// GEMMs of 8-bit weights: the reference for every format, oneDNN's version for integers, and what
// both share.
#include "kernels/linear.h"

namespace weft::cpu {

// Plain loops, for every 8-bit format. Integer sums are exact, so every other version gets the same
// ones.
PackedLinear pack_linear_8bit(Stream& stream, const TensorView& weight, const TensorView& bias,
                              DType dtype, WeightFormat format);
void linear_8bit(Stream& stream, const TensorView& x, const PackedLinear& packed,
                 LinearActivation activation, const TensorView& out);

// These need has_int8_dot_products().
PackedLinear pack_linear_int8_onednn(Stream& stream, const TensorView& weight,
                                     const TensorView& bias, DType dtype);
void linear_int8_onednn(Stream& stream, const TensorView& x, const PackedLinear& packed,
                        LinearActivation activation, const TensorView& out);

// `values` are the weights in `format`, [out, in] kI8 or kF8E4M3; `scales` are [out] f32.
struct EightBitWeights : PackedStorage {
  Tensor values, scales;
  void for_buffers(const BufferVisitor& visit) override {
    visit(values);
    visit(scales);
  }
};
void quantize_weights(Stream& stream, const TensorView& weight, WeightFormat format,
                      EightBitWeights& weights);

// out[i] = round(x[i] / scale), to nearest even. Returns the scale: the largest magnitude / 127, 0
// if all values are zero, or NaN if x holds NaN or Inf (out is 0 then).
float quantize_row_reference(const float* x, int64_t count, int8_t* out);
// The same in Highway, as unsigned values: 128 is added.
float quantize_row(const float* x, int64_t count, uint8_t* out);

// Converts one row of integer sums to f32 results: out = act((sums[i] - corrections[i]) * (scale *
// scales[i]) + bias[i]).
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
