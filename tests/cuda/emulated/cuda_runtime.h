#pragma once
// Device code as C++: the keywords, built-in variables and functions of CUDA that the kernels use.
// A block's threads are fibers of one host thread; one block runs at a time.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "tests/cuda/emulated/device_math.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = 32;

struct __align__(8) int2 {
  int x, y;
};
struct int3 {
  int x, y, z;
};
struct __align__(16) int4 {
  int x, y, z, w;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct __align__(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(16) longlong2 {
  long long x, y;
};
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace weft::emulated {

void sync_block();
int sync_block_or(int predicate);

// Runs one operation of a whole warp: every lane of `mask` passes its argument, the last to arrive
// calls `finish`, which sees all arguments, and then all go on. With `aligned`, an exited lane is a
// fault.
using Finish = void (*)(void* const (&arguments)[32], uint32_t lanes);
void collective(uint32_t mask, const char* what, Finish finish, void* argument, bool aligned);
int lane();

[[noreturn]] void device_fault(const char* what);

template <class T>
struct Exchange {
  T value, result;
  int source;  // the lane whose value this one reads
};

template <class T>
T exchange(uint32_t mask, const char* what, T value, int source) {
  Exchange<T> mine{value, {}, source};
  collective(
      mask, what,
      [](void* const(&arguments)[32], uint32_t lanes) {
        for (int i = 0; i < 32; ++i) {
          if (!(lanes >> i & 1)) continue;
          auto* to = static_cast<Exchange<T>*>(arguments[i]);
          if (lanes >> to->source & 1)
            to->result = static_cast<Exchange<T>*>(arguments[to->source])->value;
          else
            std::memset(static_cast<void*>(&to->result), 0xff, sizeof(T));  // undefined on a device
        }
      },
      &mine, false);
  return mine.result;
}

// Returns the lane that a shuffle reads: the calling lane itself if `wanted` leaves its group of
// `width`.
inline int source_lane(int wanted, int width) {
  const int first = lane() / width * width;
  return wanted < first || wanted >= first + width ? lane() : wanted;
}

uint32_t ballot(uint32_t mask, bool predicate);

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread);

}  // namespace weft::emulated

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return weft::emulated::launch(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, packed = std::tuple<std::decay_t<Parameters>...>(
                   std::forward<Arguments>(arguments)...)] { std::apply(kernel, packed); });
}

inline void __syncthreads() { weft::emulated::sync_block(); }
inline int __syncthreads_or(int predicate) { return weft::emulated::sync_block_or(predicate); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  weft::emulated::collective(
      mask, "__syncwarp", [](void* const(&)[32], uint32_t) {}, nullptr, false);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = weft::emulated::lane() / width * width;
  return weft::emulated::exchange(mask, "__shfl_sync", value, first + (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  // The lower group of a width can be read from a higher one, not the reverse (PTX shfl.bfly).
  const int wanted = weft::emulated::lane() ^ lanes;
  const int last = weft::emulated::lane() / width * width + width - 1;
  return weft::emulated::exchange(mask, "__shfl_xor_sync", value,
                                  wanted > last ? weft::emulated::lane() : wanted);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return weft::emulated::exchange(
      mask, "__shfl_down_sync", value,
      weft::emulated::source_lane(weft::emulated::lane() + static_cast<int>(delta), width));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return weft::emulated::exchange(
      mask, "__shfl_up_sync", value,
      weft::emulated::source_lane(weft::emulated::lane() - static_cast<int>(delta), width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return weft::emulated::ballot(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return weft::emulated::ballot(mask, predicate != 0) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return weft::emulated::ballot(mask, predicate == 0) == 0;
}
