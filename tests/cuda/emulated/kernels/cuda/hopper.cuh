#pragma once
// The functions of kernels/cuda/hopper.cuh in C++ (see there for the layouts).
#include "kernels/cuda/intrinsics.cuh"
#include "kernels/fp8.h"

namespace weft::emulated {

unsigned shared_address(const void* shared);
void barrier_init(uint64_t* barrier, int arrivals);
void barrier_arrive(uint64_t* barrier, int bytes);
void barrier_wait(uint64_t* barrier, int parity);
void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier);
void named_barrier_arrive(int barrier, int threads, bool wait);
// `a` points to the thread's registers, or is null and a_rows describes a's rows. Elements of 1
// byte are e4m3, of 2 bytes bf16.
void wgmma_multiply(float (&c)[64], const uint32_t* a, uint64_t a_rows, uint64_t b, bool add,
                    int element_bytes);
void wgmma_commit();
void wgmma_wait(int newest);

}  // namespace weft::emulated

namespace weft::cuda {

inline void barrier_init(uint64_t* barrier, int arrivals) {
  emulated::barrier_init(barrier, arrivals);
}
inline void barrier_init_fence() {}
inline void barrier_arrive(uint64_t* barrier) { emulated::barrier_arrive(barrier, 0); }
inline void barrier_expect(uint64_t* barrier, int bytes) {
  emulated::barrier_arrive(barrier, bytes);
}
inline void barrier_wait(uint64_t* barrier, int parity) { emulated::barrier_wait(barrier, parity); }
// The bytes are only copied when a thread waits for them; until then they are NaNs.
inline void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
  emulated::copy_bulk(shared, global, bytes, barrier);
}

inline void named_barrier_sync(int barrier, int threads) {
  emulated::named_barrier_arrive(barrier, threads, true);
}
inline void named_barrier_arrive(int barrier, int threads) {
  emulated::named_barrier_arrive(barrier, threads, false);
}
template <int>
void give_registers() {}
template <int>
void take_registers() {}

inline void wgmma_fence() {}
inline void wgmma_commit() { emulated::wgmma_commit(); }
template <int N>
void wgmma_wait() {
  emulated::wgmma_wait(N);
}
inline void wgmma_hold(float (&)[64]) {}
inline void wgmma_hold(uint32_t (&)[4]) {}

inline uint64_t wgmma_descriptor(const void* shared, int column_byte) {
  const unsigned at = emulated::shared_address(shared) + static_cast<unsigned>(column_byte);
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16 | (at >> 4 & 0x3fffu);
}
// The result is only written at the wait; until then it is NaN.
template <class Element>
void wgmma_multiply(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  emulated::wgmma_multiply(c, a, 0, b, false, sizeof(Element));
}
template <class Element>
void wgmma_add(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  emulated::wgmma_multiply(c, a, 0, b, true, sizeof(Element));
}
template <class Element>
void wgmma_multiply(float (&c)[64], uint64_t a, uint64_t b) {
  emulated::wgmma_multiply(c, nullptr, a, b, false, sizeof(Element));
}
template <class Element>
void wgmma_add(float (&c)[64], uint64_t a, uint64_t b) {
  emulated::wgmma_multiply(c, nullptr, a, b, true, sizeof(Element));
}

inline uint32_t e4m3_quad(float a, float b, float c, float d) {
  return to_e4m3(a) | static_cast<uint32_t>(to_e4m3(b)) << 8 |
         static_cast<uint32_t>(to_e4m3(c)) << 16 | static_cast<uint32_t>(to_e4m3(d)) << 24;
}

}  // namespace weft::cuda
