#include <algorithm>

#include "kernels/cuda/gemv.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vector8.cuh"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTiles = 2;             // tiles of eight columns per block
constexpr int kColumns = 8 * kTiles;  // kGemvRows x kColumns outputs: one per thread
constexpr int kUnroll = 4;            // 16-byte loads per tile in flight in a thread
constexpr unsigned kMostGroups = 65535;
static_assert(kGemvRows * kColumns == kThreads);

// Loads eight elements of a row from `at`, with zeros after its end; a null row gives zeros.
__device__ __forceinline__ uint4 load_row(const bf16* row, int64_t at, int64_t k, bool aligned) {
  if (!row || at >= k) return make_uint4(0, 0, 0, 0);
  if (aligned && at + 8 <= k) return *reinterpret_cast<const uint4*>(row + at);
  uint32_t packed[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < k) packed[i / 2] |= static_cast<uint32_t>(row[at + i].bits) << i % 2 * 16;
  return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

// Converts two e4m3 in the low bytes of `pair` to bf16; weights contain no NaN.
__device__ __forceinline__ uint32_t widen_pair(uint32_t pair) {
  const auto widen = [](uint32_t byte) {
    return __float_as_uint(__uint_as_float((byte & 0x80u) << 24 | (byte & 0x7fu) << 20) * 0x1p120f);
  };
  return widen(pair & 0xffu) >> 16 | (widen(pair >> 8 & 0xffu) & 0xffff0000u);
}

// Converts 16 bytes of weights to pairs of bf16: four pairs from bf16, eight from e4m3.
__device__ __forceinline__ void spread(uint4 w, uint32_t (&pairs)[4]) {
  pairs[0] = w.x;
  pairs[1] = w.y;
  pairs[2] = w.z;
  pairs[3] = w.w;
}
__device__ __forceinline__ void spread(uint4 w, uint32_t (&pairs)[8]) {
  const uint32_t four[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = widen_pair(four[i]);
    pairs[2 * i + 1] = widen_pair(four[i] >> 16);
  }
}

// Computes one warp's share of k: acc[t] += its 16 rows times tile t of eight columns. The order of
// k does not matter, as long as both operands have the same: thread i of four loads 16 consecutive
// bytes of weights, and the same elements of x, for whichever k the tensor core expects.
template <class W>
__device__ __forceinline__ void multiply_share(const Gemv& p, bool x_aligned, int64_t row,
                                               int64_t column, float (&acc)[kTiles][4]) {
  constexpr int kPer = 16 / sizeof(W);
  constexpr int64_t kStep = 4 * kPer, kStride = kWarps * kStep;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const bf16* low = row < p.m ? p.x + row * p.x_stride : nullptr;
  const bf16* high = row + 8 < p.m ? p.x + (row + 8) * p.x_stride : nullptr;
  for (int64_t k0 = warp * kStep; k0 < p.k; k0 += kUnroll * kStride) {
    const int64_t first = k0 + lane % 4 * kPer;
    uint4 w[kUnroll][kTiles];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int64_t at = first + u * kStride, o = column + t * 8;
        w[u][t] = make_uint4(0, 0, 0, 0);
        if (at < p.w_stride && o < p.n)
          w[u][t] =
              *reinterpret_cast<const uint4*>(static_cast<const W*>(p.w) + o * p.w_stride + at);
      }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      uint32_t b[kTiles][kPer / 2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) spread(w[u][t], b[t]);
#pragma unroll
      for (int part = 0; part < kPer / 8; ++part) {
        const int64_t at = first + u * kStride + part * 8;
        const uint4 x0 = load_row(low, at, p.k, x_aligned), x8 = load_row(high, at, p.k, x_aligned);
        const uint32_t front[4] = {x0.x, x8.x, x0.y, x8.y}, back[4] = {x0.z, x8.z, x0.w, x8.w};
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const uint32_t b_front[2] = {b[t][4 * part], b[t][4 * part + 1]};
          const uint32_t b_back[2] = {b[t][4 * part + 2], b[t][4 * part + 3]};
          multiply_bf16(acc[t], front, b_front);
          multiply_bf16(acc[t], back, b_back);
        }
      }
    }
  }
}

// A block computes 16 columns, 16 rows at a time; its warps divide k.
template <class W, class Out>
__global__ void __launch_bounds__(kThreads) gemv_kernel(Gemv p, bool x_aligned) {
  __shared__ float sums[kWarps][kGemvRows][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, i = lane % 4;
  const int64_t first_column = int64_t{blockIdx.x} * kColumns;
  for (int64_t first_row = int64_t{blockIdx.y} * kGemvRows; first_row < p.m;
       first_row += int64_t{gridDim.y} * kGemvRows) {
    float acc[kTiles][4] = {};
    multiply_share<W>(p, x_aligned, first_row + g, first_column + g, acc);
    __syncthreads();  // the sums of the previous rows have been read
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[warp][g + c / 2 * 8][t * 8 + 2 * i + c % 2] = acc[t][c];
    __syncthreads();
    const int r = static_cast<int>(threadIdx.x) / kColumns,
              c = static_cast<int>(threadIdx.x) % kColumns;
    const int64_t row = first_row + r, column = first_column + c;
    if (row < p.m && column < p.n) {
      float sum = 0;
#pragma unroll
      for (int part = 0; part < kWarps; ++part) sum += sums[part][r][c];
      if (p.w_scales) sum = __fmul_rn(sum, __fmul_rn(p.x_scales[row], p.w_scales[column]));
      if (p.bias) sum = __fadd_rn(sum, p.bias[column]);
      static_cast<Out*>(p.out)[row * p.out_stride + column] =
          from_float<Out>(activate(sum, p.activation));
    }
  }
}

__device__ __forceinline__ void load16(const float* at, float (&v)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(at);
  v[0] = four.x;
  v[1] = four.y;
  v[2] = four.z;
  v[3] = four.w;
}
__device__ __forceinline__ void load16(const int8_t* at, int32_t (&v)[16]) {
  const uint4 four = *reinterpret_cast<const uint4*>(at);
  const uint32_t packed[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = static_cast<int8_t>(packed[i / 4] >> i % 4 * 8 & 0xffu);
}
__device__ __forceinline__ void multiply_add(float a, float b, float& sum) {
  sum = fmaf(a, b, sum);
}
__device__ __forceinline__ void multiply_add(int32_t a, int32_t b, int32_t& sum) { sum += a * b; }

// One warp computes one column, kGemvDotRows rows at a time.
template <class T, class Sum>
__global__ void __launch_bounds__(kThreads) gemv_dot_kernel(GemvDot p) {
  constexpr int kPer = 16 / sizeof(T), kRows = kGemvDotRows;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t column = int64_t{blockIdx.x} * kWarps + warp;
  if (column >= p.n) return;
  const T* w = static_cast<const T*>(p.w) + column * p.w_stride;
  for (int64_t first = int64_t{blockIdx.y} * kRows; first < p.m;
       first += int64_t{gridDim.y} * kRows) {
    Sum sum[kRows] = {};
    for (int64_t at = lane * kPer; at < p.k; at += 32 * kPer) {
      Sum weights[kPer];
      load16(w + at, weights);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= p.m) break;
        const T* x = static_cast<const T*>(p.x) + (first + r) * p.x_stride + at;
#pragma unroll
        for (int i = 0; i < kPer; ++i)
          if (at + i < p.k) multiply_add(static_cast<Sum>(x[i]), weights[i], sum[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      for (int lanes = 16; lanes > 0; lanes /= 2)
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], lanes);
      if (lane == 0 && first + r < p.m)
        static_cast<Sum*>(p.sums)[(first + r) * p.sums_stride + column] = sum[r];
    }
  }
}

unsigned groups(int64_t rows, int64_t of) {
  return static_cast<unsigned>(std::min<int64_t>((rows + of - 1) / of, kMostGroups));
}

}  // namespace

void gemv(const Stream& stream, const Gemv& p) {
  const bool x_aligned = has_aligned_rows(p.x, p.x_stride, sizeof(bf16));
  const dim3 grid(blocks_for(p.n, kColumns), groups(p.m, kGemvRows));
  const auto start = [&](auto* kernel) { launch(stream, {grid, kThreads}, kernel, p, x_aligned); };
  const bool narrow = p.out_dtype == DType::kBF16;
  if (p.w_dtype == DType::kBF16)
    start(narrow ? gemv_kernel<bf16, bf16> : gemv_kernel<bf16, float>);
  else
    start(narrow ? gemv_kernel<uint8_t, bf16> : gemv_kernel<uint8_t, float>);
}

void gemv_dot(const Stream& stream, const GemvDot& p) {
  const dim3 grid(blocks_for(p.n, kWarps), groups(p.m, kGemvDotRows));
  const auto start = [&](auto* kernel) { launch(stream, {grid, kThreads}, kernel, p); };
  if (p.dtype == DType::kF32)
    start(gemv_dot_kernel<float, float>);
  else
    start(gemv_dot_kernel<int8_t, int32_t>);
}

}  // namespace weft::cuda
