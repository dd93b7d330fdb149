#pragma once
// The norm family. Rows are the last dimension; leading dimensions are free (they must collapse,
// see TensorView::rows_collapse). x and out share one dtype (f32 or bf16) and may alias exactly;
// layer_norm, modulated_layer_norm and rms_norm also take f32 x with bf16 out. Statistics and
// arithmetic are f32, and a result rounds once; weights, scales and shifts are f32. Empty inputs
// are no-ops.
#include "kernels/stream.h"

namespace weft {

// out = (x - mean) * rsqrt(var + eps) * weight + bias, biased variance.
// x, out [.., D]; weight, bias [D] f32 or empty (1 and 0).
void layer_norm(Stream& stream, const TensorView& x, const TensorView& weight,
                const TensorView& bias, float eps, const TensorView& out);

// adaLN (Peebles & Xie 2023, section 3.2): out = LN(x) * (1 + scale) + shift.
// x, out [.., D]; scale, shift [D] f32.
void modulated_layer_norm(Stream& stream, const TensorView& x, const TensorView& scale,
                          const TensorView& shift, float eps, const TensorView& out);

// layer_norm, or modulated_layer_norm with weight as the scale and bias as the shift.
struct LayerNorm {
  TensorView weight, bias;
  float eps = 0;
  bool modulated = false;
};
// sum += y * gate, then out = norm(sum): the results of gated_add and of the norm, bit for bit. A
// device reads the sum once. sum, y [.., D] f32; gate [D] f32; out [.., D] f32 or bf16.
void gated_add_norm(Stream& stream, const TensorView& sum, const TensorView& y,
                    const TensorView& gate, const LayerNorm& norm, const TensorView& out);

// out = x * rsqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019, eq. 4). x, out [.., D];
// weight [D]. Per-head norm: view [n, A, E] and weight [E]; heads and their rows may be strided.
void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float eps,
              const TensorView& out);

// These are the two halves of a full-width RMS norm whose width may be split over ranks: sums [N]
// f32 holds sum(x^2) of this rank's part; between the two calls Reducer::sum adds the parts.
void sum_squares(Stream& stream, const TensorView& x, const TensorView& sums);  // x [N, D]
// out = x * rsqrt(sums / width + eps) * weight. x, out [N, D]; weight [D]; width = the full width.
void rms_scale(Stream& stream, const TensorView& x, const TensorView& sums, int64_t width,
               const TensorView& weight, float eps, const TensorView& out);

enum class Activation : uint8_t { kNone, kSilu };

// The VAE's norm over channels: out = act(x / max(|x|_2, 1e-12) * sqrt(C) * gamma).
// x, out [.., C] channels last; gamma [C].
void channel_rms_norm(Stream& stream, const TensorView& x, const TensorView& gamma,
                      Activation activation, const TensorView& out);

// Group norm (Wu & He 2018) of a picture whose pixels may be split over ranks, in three steps:
// Reducer::sum adds the ranks' sums after the first step and their squares after the second. x, out
// [N, C] are pixels and channels, and a group is C / G neighbouring channels. sums [G + 1] f32
// holds sum(x) of every group, then the number of pixels; squares [G] f32 holds sum((x - mean)^2).
void group_sums(Stream& stream, const TensorView& x, const TensorView& sums);
void group_squares(Stream& stream, const TensorView& x, const TensorView& sums,
                   const TensorView& squares);
// out = act((x - mean) * rsqrt(var + eps) * weight + bias), biased variance. weight, bias [C].
void group_norm(Stream& stream, const TensorView& x, const TensorView& sums,
                const TensorView& squares, const TensorView& weight, const TensorView& bias,
                float eps, Activation activation, const TensorView& out);

}  // namespace weft
