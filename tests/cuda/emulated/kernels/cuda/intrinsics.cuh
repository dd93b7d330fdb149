#pragma once
// The functions of kernels/cuda/intrinsics.cuh in C++ (see there for the layouts).
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace weft::emulated {

void* dynamic_shared();
void copy_async16(void* shared, const void* global, bool real);
void copy_async_commit();
void copy_async_wait(int newest);
void load_matrices(uint32_t (&out)[4], const void* row, bool transposed);
void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

}  // namespace weft::emulated

namespace weft::cuda {

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulated::dynamic_shared());
}

// The bytes are only copied at the wait; until then they are NaNs.
inline void copy_async16(void* shared, const void* global, bool real = true) {
  emulated::copy_async16(shared, global, real);
}
inline void copy_async_commit() { emulated::copy_async_commit(); }
template <int N>
void copy_async_wait() {
  emulated::copy_async_wait(N);
}

inline void load_matrices(uint32_t (&out)[4], const void* shared_row) {
  emulated::load_matrices(out, shared_row, false);
}
inline void load_matrices_transposed(uint32_t (&out)[4], const void* shared_row) {
  emulated::load_matrices(out, shared_row, true);
}
inline void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  emulated::multiply_bf16(c, a, b);
}

inline uint32_t bf16_pair(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

inline float fast_reciprocal(float x) {
  const float out = 1 / x;
  return std::fabs(out) < 0x1p-126f ? std::copysign(0.0f, out) : out;
}

inline float fast_exp2(float x) { return std::exp2(x); }

}  // namespace weft::cuda
