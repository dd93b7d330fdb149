#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/vector8.cuh"
#include "kernels/fp8.h"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr uint32_t kNanBits = 0x7fc00000u;

__device__ __forceinline__ uint32_t byte_of(float x, int8_t) {
  return static_cast<uint32_t>(__float2int_rn(x)) & 0xffu;
}
__device__ __forceinline__ uint32_t byte_of(float x, uint8_t) { return to_e4m3(x); }

// Stores eight quantized values at once; N is int8_t, uint8_t (e4m3) or bf16 (e4m3 as bf16).
template <class N>
__device__ __forceinline__ void store_quantized(N* at, const float (&x)[8]) {
  uint32_t packed[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) packed[i / 4] |= byte_of(x[i], N{}) << i % 4 * 8;
  *reinterpret_cast<uint2*>(at) = make_uint2(packed[0], packed[1]);
}
template <>
__device__ __forceinline__ void store_quantized<bf16>(bf16* at, const float (&x)[8]) {
  float number[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) number[i] = from_e4m3(to_e4m3(x[i]));
  store8(at, 8, true, number);
}

template <class T>
struct Rows {
  const T* data;
  int64_t stride, count;
  bool aligned;
};

template <class T>
Rows<T> rows_of(const TensorView& x) {
  return {x.as<T>(), x.row_stride(), x[-1], has_aligned_rows(x.data, x.row_stride(), sizeof(T))};
}

struct RowRange {
  float most;    // the largest magnitude
  float poison;  // NaN if a value is NaN or Inf, else 0
};

template <class T>
__device__ RowRange row_range(const T* x, int64_t count, bool aligned) {
  float most = 0, poison = 0;
  for (int64_t at = int64_t{threadIdx.x} * 8; at < count; at += kThreads * 8) {
    float v[8];
    load8(x + at, count - at, aligned, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      most = fmaxf(most, fabsf(v[i]));
      poison += v[i] * 0.0f;
    }
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
    poison += __shfl_xor_sync(0xffffffffu, poison, lanes);
  }
  __shared__ float all_most[kWarps], all_poison[kWarps];
  if (threadIdx.x % 32 == 0) {
    all_most[threadIdx.x / 32] = most;
    all_poison[threadIdx.x / 32] = poison;
  }
  __syncthreads();
  RowRange range{0, 0};
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    range.most = fmaxf(range.most, all_most[i]);
    range.poison += all_poison[i];
  }
  return range;
}

// One block per row reads it once for the scale, and once more, from cache, to quantize it.
template <class T, class N>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Rows<T> from, QuantizedRows to, const uint32_t* most) {
  const int64_t row = blockIdx.x, count = from.count, stride = to.stride;
  const bool aligned = from.aligned;
  const T* x = from.data + row * from.stride;
  N* numbers = static_cast<N*>(to.numbers) + row * stride;
  constexpr bool kWhole = std::is_same_v<N, int8_t>;
  bool finite = true;
  float unit = 0, scale = 0;
  if (most) {
    const float largest = __uint_as_float(*most);
    scale = e4m3_scale(largest);
    finite = scale == scale;
    unit = finite ? power_of_two(-e4m3_exponent(largest)) : 0.0f;
  } else {
    const RowRange range = row_range(x, count, aligned);
    finite = range.poison == 0.0f;
    if (finite) unit = kWhole ? (range.most > 0 ? 127 / range.most : 0) : e4m3_unit(range.most);
    scale = range.most / (kWhole ? 127.0f : kLargestE4m3) + range.poison;
  }
  for (int64_t at = int64_t{threadIdx.x} * 8; at < stride; at += kThreads * 8) {
    float v[8];
    load8(x + at, count - at, aligned, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = finite ? v[i] * unit : 0.0f;
    store_quantized(numbers + at, v);
  }
  if (threadIdx.x == 0) to.scales[row] = scale;
}

// One block per row.
template <class T>
__global__ void __launch_bounds__(kThreads) measure_kernel(Rows<T> x, uint32_t* most) {
  const RowRange range = row_range(x.data + blockIdx.x * x.stride, x.count, x.aligned);
  if (threadIdx.x == 0)
    atomicMax(most, range.poison == 0.0f ? __float_as_uint(range.most) : kNanBits);
}

template <class S, class Out>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(FinishRows p, bool sums_aligned, bool out_aligned) {
  const int64_t pieces = (p.columns + 7) / 8;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= p.rows * pieces) return;
  const int64_t row = index / pieces, column = index % pieces * 8;
  const int64_t valid = p.columns - column;
  float v[8], bias[8], scales[8];
  load8(static_cast<const S*>(p.sums) + row * p.sums_stride + column, valid, sums_aligned, v);
  if (p.w_scales) {
    load8(p.w_scales + column, valid, true, scales);
    const float scale = p.x_scales[row];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(v[i], __fmul_rn(scale, scales[i]));
  }
  if (p.bias) {
    load8(p.bias + column, valid, true, bias);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fadd_rn(v[i], bias[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = activate(v[i], p.activation);
  store8(static_cast<Out*>(p.out) + row * p.out_stride + column, valid, out_aligned, v);
}

__global__ void __launch_bounds__(kThreads)
    widen_kernel(const uint8_t* numbers, int64_t count, bf16* out) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (at >= count) return;
  const uint2 packed = *reinterpret_cast<const uint2*>(numbers + at);
  float v[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    v[i] = from_e4m3(static_cast<uint8_t>((i < 4 ? packed.x : packed.y) >> i % 4 * 8));
  store8(out + at, 8, true, v);
}

}  // namespace

void quantize_rows(const Stream& stream, const TensorView& x, const QuantizedRows& to,
                   const uint32_t* most) {
  CHECK(!most || to.type != QuantizedType::kInt8, "whole numbers have scales of rows");
  CHECK(to.stride % 16 == 0 && to.stride >= x[-1], to.stride);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto start = [&](auto kernel) {
      launch(stream, {static_cast<unsigned>(x.rows()), kThreads}, kernel, rows_of<T>(x), to, most);
    };
    if (to.type == QuantizedType::kInt8) start(quantize_kernel<T, int8_t>);
    if (to.type == QuantizedType::kE4m3) start(quantize_kernel<T, uint8_t>);
    if (to.type == QuantizedType::kE4m3AsBf16) start(quantize_kernel<T, bf16>);
  });
}

void measure_rows(const Stream& stream, const TensorView& x, uint32_t* most) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(stream, {static_cast<unsigned>(x.rows()), kThreads}, measure_kernel<T>, rows_of<T>(x),
           most);
  });
}

void finish_rows(const Stream& stream, const FinishRows& p) {
  const bool sums_aligned = has_aligned_rows(p.sums, p.sums_stride, 4);
  const bool out_aligned = has_aligned_rows(p.out, p.out_stride, size_of(p.out_dtype));
  const auto start = [&](auto* kernel) {
    launch(stream, {blocks_for(p.rows * ((p.columns + 7) / 8), kThreads), kThreads}, kernel, p,
           sums_aligned, out_aligned);
  };
  const bool narrow = p.out_dtype == DType::kBF16;
  if (p.whole)
    start(narrow ? finish_kernel<int32_t, bf16> : finish_kernel<int32_t, float>);
  else
    start(narrow ? finish_kernel<float, bf16> : finish_kernel<float, float>);
}

void widen_e4m3(const Stream& stream, const void* numbers, int64_t count, bf16* out) {
  launch(stream, {blocks_for(count, kThreads * 8), kThreads}, widen_kernel,
         static_cast<const uint8_t*>(numbers), count, out);
}

}  // namespace weft::cuda
