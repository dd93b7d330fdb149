#pragma once
// Predicates that the family files put inside CHECK: what an op asks of its views.
#include "kernels/stream.h"

namespace weft {

// The dtypes arithmetic runs in.
inline bool is_compute(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

// The dtypes that convert among each other.
inline bool is_float(DType dtype) {
  return is_compute(dtype) || dtype == DType::kF16 || dtype == DType::kF64;
}

// What is packed once, and one end of a copy, may lie on the host, wherever the stream works.
inline bool is_near(const Stream& stream, const TensorView& x) {
  return x.device == stream.device() || x.device == Device{};
}

inline bool same_shape(const TensorView& a, const TensorView& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.extent[i] != b.extent[i]) return false;
  return true;
}

// Rows over the last dimension, on the stream's device, in a compute dtype.
inline bool is_rows(const Stream& stream, const TensorView& x) {
  return x.device == stream.device() && is_compute(x.dtype) && x.rows_collapse();
}

// A dense f32 vector of `size`.
inline bool is_vector(const Stream& stream, const TensorView& v, int64_t size) {
  return v.device == stream.device() && v.dtype == DType::kF32 && v.rank == 1 &&
         v.extent[0] == size && v.contiguous();
}

}  // namespace weft
