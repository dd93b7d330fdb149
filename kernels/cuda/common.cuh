#pragma once
// Shared by the memory-bound kernels: accesses of 16 bytes, and the layout of threads over rows.
#include <algorithm>
#include <bit>

#include "kernels/cuda/launch.cuh"
#include "kernels/dtype.h"

namespace weft::cuda {

// Loads and stores N consecutive elements as f32. N is 1, or p is aligned to 16 bytes or to the N
// elements.
template <int N>
__device__ __forceinline__ void load_lanes(const float* p, float (&out)[N]) {
  static_assert(N == 1 || N % 4 == 0);
  if constexpr (N == 1) {
    out[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(p + i);
      out[i] = four.x;
      out[i + 1] = four.y;
      out[i + 2] = four.z;
      out[i + 3] = four.w;
    }
  }
}

template <int N>
__device__ __forceinline__ void load_lanes(const bf16* p, float (&out)[N]) {
  static_assert(N == 1 || N == 8);
  if constexpr (N == 1) {
    out[0] = to_float(*p);
  } else {
    const uint4 eight = *reinterpret_cast<const uint4*>(p);
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      out[2 * w] = std::bit_cast<float>(pairs[w] << 16);
      out[2 * w + 1] = std::bit_cast<float>(pairs[w] & 0xffff0000u);
    }
  }
}

template <int N>
__device__ __forceinline__ void store_lanes(const float (&value)[N], float* p) {
  static_assert(N == 1 || N % 4 == 0);
  if constexpr (N == 1) {
    *p = value[0];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *reinterpret_cast<float4*>(p + i) =
          make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
  }
}

template <int N>
__device__ __forceinline__ void store_lanes(const float (&value)[N], bf16* p) {
  static_assert(N == 1 || N == 4 || N == 8);
  if constexpr (N == 1) {
    *p = to_bf16(value[0]);
  } else {
    uint32_t pairs[N / 2];
#pragma unroll
    for (int w = 0; w < N / 2; ++w) pairs[w] = bf16_pair(value[2 * w], value[2 * w + 1]);
    if constexpr (N == 4)
      *reinterpret_cast<uint2*>(p) = make_uint2(pairs[0], pairs[1]);
    else
      *reinterpret_cast<uint4*>(p) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// x / (1 + e^-a), that is x sigmoid(a). It is 0 where the quotient leaves the range of f32, also
// for infinite x. NaN in x stays.
__device__ __forceinline__ float gate(float x, float a) {
  return a < -88.0f ? 0.0f : x * fast_reciprocal(1 + expf(-a));
}

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// True if the rows of x (or a vector) may be accessed `lanes` elements at a time.
inline bool wide_rows(const TensorView& x, int lanes) {
  if (!x) return true;
  bool wide = aligned16(x.data) && x[-1] % lanes == 0;
  for (int i = 0; i + 1 < x.rank; ++i) wide = wide && (x[i] == 1 || x.stride[i] % lanes == 0);
  return wide;
}

// The elements per access if at least one operand is bf16, and if all are f32.
inline constexpr int kBf16Lanes = 8, kF32Lanes = 4;

// Lays threads over rows of `columns` items: x runs along a row, y over the rows. There are only a
// few blocks for every resident slot of the device; a thread goes on to further rows.
inline Launch over_rows(const Stream& stream, int64_t rows, int64_t columns) {
  constexpr int64_t kThreads = 256, kWarp = 32;
  const int64_t parts = (columns + kThreads - 1) / kThreads;
  const auto each = static_cast<uint64_t>((columns + parts - 1) / parts);
  const auto x = static_cast<unsigned>(each >= kWarp ? (each + kWarp - 1) / kWarp * kWarp
                                                     : std::bit_ceil(each));
  const unsigned y = kThreads / x, blocks_x = blocks_for(columns, x);
  constexpr int64_t kBlocksPerPlace = 4, kPlaces = 8;
  const int64_t most = kBlocksPerPlace * kPlaces * cuda_queue(stream).properties().multiprocessors;
  const int64_t blocks_y = std::min<int64_t>(blocks_for(rows, y), (most + blocks_x - 1) / blocks_x);
  return {.grid = dim3(blocks_x, static_cast<unsigned>(blocks_y)), .block = dim3(x, y)};
}

__device__ __forceinline__ int64_t first_row() {
  return static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}
__device__ __forceinline__ int64_t row_step() {
  return static_cast<int64_t>(gridDim.y) * blockDim.y;
}
__device__ __forceinline__ int64_t column() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace weft::cuda
