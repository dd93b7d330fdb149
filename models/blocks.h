#pragma once
// Building blocks shared by several models: row-parallel linears, RMS norms, patches, f32 copies of
// weights.
#include <array>
#include <vector>

#include "kernels/copy.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "parallel/context.h"

namespace weft {

// A linear layer whose input width may be split over ranks. The bias is fused if the width is
// whole. If it is split, the bias is stored separately, because it must be added after
// Reducer::sum.
struct RowLinear {
  PackedLinear packed;
  Tensor bias;  // [out] f32, or empty
  size_t bytes() const;
};

// Writes the sum over ranks of x * weight^T, plus bias, to out [N, out] f32. x [N, in] is in the
// compute dtype.
void row_linear(Context& context, const TensorView& x, const RowLinear& weights,
                const TensorView& out);

// Returns the RMS norm of x [n, D] f32 as a tensor of `dtype` in the arena.
TensorView rms_normed(Context& context, const TensorView& x, const TensorView& weight, float eps,
                      DType dtype);

// Applies RMS norm in place to x [N, D part], whose width may be split over ranks. `width` is the
// full D.
void full_rms_norm(Context& context, const TensorView& x, int64_t width, const TensorView& weight,
                   float eps);

// Appends the buffers that an offloaded layer is copied as, and frees those that repeat others.
void append_pieces(const PackedLinear& packed, std::vector<TensorView>& pieces);

// Returns an f32 copy of a checkpoint tensor, reshaped, on the stream's device.
Tensor f32_copy(Stream& stream, const TensorView& x, std::initializer_list<int64_t> shape);

// Copies patches of latent [C, F, H, W] f32 to `rows` [N, C * pf * ph * pw] f32, one row per token.
// C is slowest within a row, as in the weight of a strided convolution. `tokens` are the global
// tokens of the rows.
void patchify(Stream& stream, const TensorView& latent, std::array<int64_t, 3> patch,
              const TokenRanges& tokens, const TensorView& rows);
// The inverse copies. They write only the patches of `tokens`.
void unpatchify(Stream& stream, const TensorView& rows, std::array<int64_t, 3> patch,
                const TokenRanges& tokens, const TensorView& latent);

}  // namespace weft
