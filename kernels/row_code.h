#pragma once
// Rows coded in 8 bits, to be sent or kept. A row of D numbers becomes D + 1 bytes: its numbers,
// and the exponent of the power of two that they share. A row that holds NaN or Inf becomes NaN.
// Every table gives the same bits, and rows do not affect each other.
#include "kernels/stream.h"

namespace weft {

//   kE4m3  f8_e4m3 (fp8.h): a value changes by at most 2^-4 of itself or 2^-17 of the row's largest
//   kInt8  whole numbers (int8_row.h): by at most half their unit, which is at most 1/64 of the
//          row's largest value and above 1/128 of it
enum class RowCode : uint8_t { kE4m3, kInt8 };

// code = x - base, rounded: x and base [.., D] f32 or bf16, code [.., D + 1] i8. An empty base is
// 0.
void encode_rows(Stream& stream, const TensorView& x, const TensorView& base,
                 const TensorView& code, RowCode kind = RowCode::kE4m3);
// out = base + code; out may alias base exactly.
void decode_rows(Stream& stream, const TensorView& code, const TensorView& base,
                 const TensorView& out, RowCode kind = RowCode::kE4m3);

}  // namespace weft
