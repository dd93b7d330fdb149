#pragma once
// Rows coded in 8 bits, to be sent. A row of D numbers becomes D + 1 bytes: its numbers as f8_e4m3
// (fp8.h), and the exponent of the power of two that they share. A value changes by at most 2^-4 of
// itself or 2^-17 of the row's largest. A row that holds NaN or Inf becomes NaN. Every table gives
// the same bits, and rows do not affect each other.
#include "kernels/stream.h"

namespace weft {

// code = x - base, rounded: x and base [.., D] f32 or bf16, code [.., D + 1] i8. An empty base is
// 0.
void encode_rows(Stream& stream, const TensorView& x, const TensorView& base,
                 const TensorView& code);
// out = base + code; out may alias base exactly.
void decode_rows(Stream& stream, const TensorView& code, const TensorView& base,
                 const TensorView& out);

}  // namespace weft
