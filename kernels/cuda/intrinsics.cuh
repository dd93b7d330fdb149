#pragma once
// Instructions that C++ cannot express, one function each (PTX ISA 8.x). Tests that run kernels on
// a host have a file of this name with the same functions.
#include <cuda_runtime.h>

#include <cstdint>

namespace weft::cuda {

// Returns the block's dynamic shared memory, 16-byte aligned.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}

// Starts an asynchronous copy of 16 bytes from global to shared memory, or writes zeros if !real.
// Both addresses are 16-byte aligned. commit ends a group of copies; wait<N> waits until at most
// the N newest groups are in flight.
__device__ __forceinline__ void copy_async16(void* shared, const void* global, bool real = true) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = real ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Loads four 8x8 matrices of 16-bit values from shared memory: thread 8 m + r of the warp gives the
// address of row r of matrix m (16 bytes); thread t gets values 2 (t % 4) and 2 (t % 4) + 1 of row
// t / 4 of each.
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const void* shared_row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(at));
}
// The same for the transposed matrices.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4],
                                                         const void* shared_row) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared_row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(at));
}

// c += a b in one warp, with a [16, 16] and b [16, 8] bf16 and c [16, 8] f32. For g = t / 4 and i =
// t % 4 thread t holds:
//   a: rows g, g + 8 at columns 2i, 2i + 1 (a[0], a[1]), then at 2i + 8, 2i + 9 (a[2], a[3]);
//   b: rows 2i, 2i + 1 (b[0]) and 2i + 8, 2i + 9 (b[1]) of column g;
//   c: rows g (c[0], c[1]) and g + 8 (c[2], c[3]) at columns 2i, 2i + 1.
// The lower half of a register holds the lower index.
__device__ __forceinline__ void multiply_bf16(float (&c)[4], const uint32_t (&a)[4],
                                              const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Rounds two values to nearest bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// 1 / x to 1 ulp; 0 if the result is below the normal numbers.
__device__ __forceinline__ float fast_reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// 2^x to about 2 ulp; 0 for -infinity.
__device__ __forceinline__ float fast_exp2(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

}  // namespace weft::cuda
