#pragma once
// The pointwise family. Tensors are [.., D] with collapsing rows, f32 or bf16 (arithmetic f32, one
// rounding); out may alias an input exactly.
#include <span>

#include "kernels/stream.h"

namespace weft {

void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out);

// out = x + y * gate, the residual of an adaLN block. x, y, out [.., D]; gate [D] f32. y may be f32
// where x is bf16.
void gated_add(Stream& stream, const TensorView& x, const TensorView& y, const TensorView& gate,
               const TensorView& out);

// out = x + bias: bias [D] f32. x may be f32 where out is bf16 (a partial sum after Reducer::sum).
void add_bias(Stream& stream, const TensorView& x, const TensorView& bias, const TensorView& out);

void silu(Stream& stream, const TensorView& x, const TensorView& out);
void tanh(Stream& stream, const TensorView& x, const TensorView& out);
void gelu_tanh(Stream& stream, const TensorView& x, const TensorView& out);
// GELU as it is defined, x (1 + erf(x / sqrt 2)) / 2, and CLIP's short form x sigmoid(1.702 x)
// (Hendrycks & Gimpel 2016).
void gelu_erf(Stream& stream, const TensorView& x, const TensorView& out);
void gelu_quick(Stream& stream, const TensorView& x, const TensorView& out);

// Gated GELU of T5 v1.1 (Shazeer 2020): out = gelu_tanh(a) * b.
void gelu_tanh_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out);

// Gated SiLU, SwiGLU's product (Shazeer 2020): out = silu(a) * b.
void silu_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out);

// A gate: out = sigmoid(a) * b.
void sigmoid_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out);

// out = a * x + b * y, all f32 of one shape (sampler updates, guidance).
void axpby(Stream& stream, float a, const TensorView& x, float b, const TensorView& y,
           const TensorView& out);

// out = the sum of factor * x over 1 ... kMaxTerms terms (the solvers' updates). Every
// multiplication and addition is f64, in the order of the terms, and the result rounds once. All
// views are f32, contiguous and of one shape; out may be any x.
struct Term {
  double factor = 0;
  TensorView x{};
};
inline constexpr int kMaxTerms = 4;
void combine(Stream& stream, std::span<const Term> terms, const TensorView& out);

// out = min(max(x, low), high); NaN stays. f32, contiguous.
void clamp(Stream& stream, const TensorView& x, float low, float high, const TensorView& out);

// Returns the index of the first element that is NaN or infinite, or -1. x is contiguous f32 or
// bf16.
int64_t first_non_finite(Stream& stream, const TensorView& x);

// Does the same without waiting for a device. `slot` is one i64 on the stream's device; it becomes
// the index if it was -1 or larger than the index, and stays otherwise. The caller sets it to -1
// first.
void note_non_finite(Stream& stream, const TensorView& x, const TensorView& slot);

}  // namespace weft
