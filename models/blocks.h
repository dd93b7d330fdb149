#pragma once
// Pieces that more than one model is made of: row-parallel linears, patches, f32 copies of weights.
#include <array>

#include "kernels/copy.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "parallel/context.h"

namespace weft {

// A linear whose input width may be split over ranks. The bias is fused where the width is whole
// and kept aside where it is split, because it must be added after Reducer::sum.
struct RowLinear {
  PackedLinear packed;
  Tensor bias;  // [out] f32, or empty
  size_t bytes() const;
};

// out [N, out] f32 = sum over ranks of x * weight^T, + bias. x [N, in] in the compute dtype.
void row_linear(Context& context, const TensorView& x, const RowLinear& weights,
                const TensorView& out);

// The RMS norm of x [n, D] f32, in the compute dtype; from the arena.
TensorView rms_normed(Context& context, const TensorView& x, const TensorView& weight, float eps,
                      DType dtype);

// RMS norm over a width that may be split over ranks, in place. x [N, D part]; width = the full D.
void full_rms_norm(Context& context, const TensorView& x, int64_t width, const TensorView& weight,
                   float eps);

// An owned f32 copy of a checkpoint tensor, reshaped, on the stream's device.
Tensor f32_copy(Stream& stream, const TensorView& x, std::initializer_list<int64_t> shape);

// Token t of `rows` ([N, C * pf * ph * pw] f32, C slowest, as a strided convolution's weight wants
// it) <- its patch of latent [C, F, H, W] f32. `tokens` are the global tokens of the rows.
void patchify(Stream& stream, const TensorView& latent, std::array<int64_t, 3> patch,
              const TokenRanges& tokens, const TensorView& rows);
// The inverses, for rows with C slowest and with C fastest; they write the places of `tokens`
// alone.
void place_patches(Stream& stream, const TensorView& rows, std::array<int64_t, 3> patch,
                   const TokenRanges& tokens, const TensorView& latent);
void unpatchify(Stream& stream, const TensorView& rows, std::array<int64_t, 3> patch,
                const TokenRanges& tokens, const TensorView& latent);

}  // namespace weft
