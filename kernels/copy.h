#pragma once
// Copy family: movement and dtype conversion between views of equal shape.
#include "kernels/stream.h"

namespace weft {

// out = x, element by element, converting between any two of f32, bf16, f16, f64 (or equal dtypes
// of any kind, moved bit for bit). Any strides, rank <= 5. Not overlapping.
void copy(Stream& stream, const TensorView& x, const TensorView& out);

void fill_zero(Stream& stream, const TensorView& out);

// out[i] = table[ids[i]] converted to out's dtype. table [V, D] any float dtype; ids int32 [n];
// out [n, D]. An id outside [0, V) is a bug.
void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out);

}  // namespace weft
