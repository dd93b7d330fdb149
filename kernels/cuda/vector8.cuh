#pragma once
// Accesses eight elements at a time: in 16 bytes where alignment allows, else one by one.
#include "kernels/cuda/common.cuh"
#include "kernels/linear.h"

namespace weft::cuda {

// True if every eighth element of every row is aligned to 16 bytes.
inline bool has_aligned_rows(const void* data, int64_t row_stride, size_t element) {
  return aligned16(data) && row_stride * static_cast<int64_t>(element) % 16 == 0;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

// v = the first `valid` of eight elements at `at`, then zeros.
template <class T>
__device__ __forceinline__ void load8(const T* at, int64_t valid, bool aligned, float (&v)[8]) {
  if (aligned && valid >= 8) return load_lanes<8>(at, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < valid ? to_float(at[i]) : 0.0f;
}
__device__ __forceinline__ void load8(const int32_t* at, int64_t valid, bool aligned,
                                      float (&v)[8]) {
  if (aligned && valid >= 8) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const int4 four = *reinterpret_cast<const int4*>(at + i);
      v[i] = static_cast<float>(four.x);
      v[i + 1] = static_cast<float>(four.y);
      v[i + 2] = static_cast<float>(four.z);
      v[i + 3] = static_cast<float>(four.w);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = i < valid ? static_cast<float>(at[i]) : 0.0f;
}

// Stores the first `valid` elements of v at `at`.
template <class T>
__device__ __forceinline__ void store8(T* at, int64_t valid, bool aligned, const float (&v)[8]) {
  if (aligned && valid >= 8) return store_lanes<8>(v, at);
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < valid) at[i] = from_float<T>(v[i]);
}

// kSilu is x sigmoid(x); kGeluTanh is the tanh form of GELU, x sigmoid(2 sqrt(2 / pi) (x + 0.044715
// x^3)).
__device__ __forceinline__ float activate(float x, LinearActivation activation) {
  if (activation == LinearActivation::kNone) return x;
  const float argument = activation == LinearActivation::kSilu
                             ? x
                             : 1.5957691216057308f * (x + 0.044715f * (x * x * x));
  return gate(x, argument);
}

}  // namespace weft::cuda
