#pragma once
// The copy family moves data and converts dtypes between views of equal shape.
#include "kernels/stream.h"

namespace weft {

// out = x, element by element, converting between any two of f32, bf16, f16, f64; other dtypes must
// be equal and are moved bit for bit. Any strides, rank <= 5. The views may not overlap.
//
// On a device's stream one of the two may lie on the host. Pageable memory has been read or written
// when copy() returns; if it is written, the call waits for the stream. Pinned memory
// (device_memory.h) with a dense view is read or written later, in the stream's order; with another
// view it is treated as pageable. Nothing is allocated on the device.
void copy(Stream& stream, const TensorView& x, const TensorView& out);

void fill_zero(Stream& stream, const TensorView& out);

// out[i] = table[ids[i]] converted to out's dtype. table [V, D] has any float dtype; ids are int32
// [n]; out is [n, D]. An id outside [0, V) is a bug; ids on a device are not checked. On a device's
// stream the ids may lie on the host, and then the table too (an embedding read from its file):
// both have been read when this returns.
void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out);

// Converts pictures to 8-bit RGB: out = 255 (x / 2 + 1/2), clamped to 0 ... 255 and rounded to
// nearest (ties to even). x [n, 3, H, W] f32, out [n, H, W, 3] u8, both contiguous. NaN is a bug.
void frames_to_rgb8(Stream& stream, const TensorView& x, const TensorView& out);

}  // namespace weft
