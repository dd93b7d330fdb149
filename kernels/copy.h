#pragma once
// Copy family: movement and dtype conversion between views of equal shape.
#include "kernels/stream.h"

namespace weft {

// out = x, element by element, converting between any two of f32, bf16, f16, f64 (or equal dtypes
// of any kind, moved bit for bit). Any strides, rank <= 5. Not overlapping.
//
// On a device's stream one of the two may lie on the host. Pageable memory has been read or written
// when copy() returns; for what is written, that waits for the stream. Pinned memory
// (device_memory.h) is read or written in the stream's order, later, if its view is dense; else as
// pageable memory is. Nothing is allocated on the device.
void copy(Stream& stream, const TensorView& x, const TensorView& out);

void fill_zero(Stream& stream, const TensorView& out);

// out[i] = table[ids[i]] converted to out's dtype. table [V, D] any float dtype; ids int32 [n];
// out [n, D]. An id outside [0, V) is a bug; nobody sees one that lies on a device. On a device's
// stream the ids may lie on the host, and then the table too (an embedding read from its file):
// both have been read when this returns.
void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out);

// Pictures as files want them: out = 255 (x / 2 + 1/2), held between 0 and 255, to the nearest
// (ties to even). x [n, 3, H, W] f32, out [n, H, W, 3] u8, both contiguous. NaN is a bug.
void frames_to_rgb8(Stream& stream, const TensorView& x, const TensorView& out);

}  // namespace weft
