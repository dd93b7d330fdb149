#pragma once
// Copies between a host and a device, and what they need of the kernels that copy on a device.
#include "kernels/stream.h"

namespace weft::cuda {

// out = x, both on the stream's device (copy.cu).
void copy_on_device(Stream& stream, const TensorView& x, const TensorView& out);

// x on the host, out on the stream's device. Pageable memory goes through pinned pieces and has
// been read when this returns; dense pinned memory is read in the stream's order.
void copy_up(Stream& stream, const TensorView& x, const TensorView& out);
// x on the stream's device, out on the host: written when this returns, or in the stream's order
// where it is dense and pinned.
void copy_down(Stream& stream, const TensorView& x, const TensorView& out);

// out[i] = table[ids[i]]: table and ids on the host, out on the stream's device.
void gather_up(Stream& stream, const TensorView& table, const TensorView& ids,
               const TensorView& out);

}  // namespace weft::cuda
