#pragma once
// Copies between a host and a device, and the device-side copies they need.
#include "kernels/stream.h"

namespace weft::cuda {

// out = x, both on the stream's device (copy.cu).
void copy_on_device(Stream& stream, const TensorView& x, const TensorView& out);

// Copies x on the host to out on the stream's device. Pageable memory goes through pinned buffers
// and has been read when this returns; dense pinned memory is read in the stream's order.
void copy_up(Stream& stream, const TensorView& x, const TensorView& out);
// Copies x on the stream's device to out on the host. out is written when this returns, or in the
// stream's order if it is dense and pinned.
void copy_down(Stream& stream, const TensorView& x, const TensorView& out);

// out[i] = table[ids[i]]: table and ids on the host, out on the stream's device.
void gather_up(Stream& stream, const TensorView& table, const TensorView& ids,
               const TensorView& out);

}  // namespace weft::cuda
