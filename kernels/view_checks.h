#pragma once
// Predicates for the CHECKs of the family files: the conditions that an op puts on its views.
#include "kernels/stream.h"

namespace weft {

// Arithmetic runs in these dtypes.
inline bool is_compute(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// These dtypes convert among each other.
inline bool is_float(DType dtype) {
  return is_compute(dtype) || dtype == DType::kF16 || dtype == DType::kF64;
}

// True if x lies on the stream's device or on the host. Weights to be packed and one end of a copy
// may lie on the host.
inline bool is_near(const Stream& stream, const TensorView& x) {
  return x.device == stream.device() || x.device == Device{} ||
         x.device.kind == Device::Kind::kMeasuredHost;
}

inline bool same_shape(const TensorView& a, const TensorView& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.extent[i] != b.extent[i]) return false;
  return true;
}

// True for rows over the last dimension, on the stream's device, in a compute dtype.
inline bool is_rows(const Stream& stream, const TensorView& x) {
  return x.device == stream.device() && is_compute(x.dtype) && x.rows_collapse();
}

// True for views of [rows, heads, E] with a dense innermost dimension.
inline bool is_heads(const Stream& stream, const TensorView& x) {
  return x.rank == 3 && x.device == stream.device() && is_compute(x.dtype) &&
         (x.extent[2] == 1 || x.stride[2] == 1);
}

// True for a dense f32 vector of length `size`.
inline bool is_vector(const Stream& stream, const TensorView& v, int64_t size) {
  return v.device == stream.device() && v.dtype == DType::kF32 && v.rank == 1 &&
         v.extent[0] == size && v.contiguous();
}

}  // namespace weft
