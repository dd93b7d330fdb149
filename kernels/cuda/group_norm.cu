// Group norm of pixels: the sums of each group, then the results.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/tables.h"
#include "kernels/norm.h"

namespace weft::cuda {

namespace {

// Group norm, step one and two: blocks of pixels sum every channel, then a block per group joins
// their sums in a fixed order.
constexpr int kPixelBlocks = 512, kGroupThreads = 256;

template <class T>
struct Pixels {
  const T* x;
  int64_t stride, count;
  int width, groups;
};

// partial[block][c] = the sum over the block's pixels of x, or of the squared difference from the
// group's mean. blockDim.x threads take channels, blockDim.y threads take pixels.
template <class T, bool kSquared>
__global__ void __launch_bounds__(kGroupThreads)
    sum_pixels(Pixels<T> p, const float* sums, float* partial) {
  const auto [x, stride, pixels, width, groups] = p;
  __shared__ float shared[kGroupThreads];
  const int c = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int64_t block = (pixels + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * block;
  const int64_t end = min(begin + block, pixels);
  float total = 0;
  if (c < width) {
    float mean = 0;
    if constexpr (kSquared) {
      const int channels = width / groups;
      mean = sums[c / channels] / (sums[groups] * static_cast<float>(channels));
    }
    float few = 0;
    int64_t count = 0;
    for (int64_t r = begin + threadIdx.y; r < end; r += blockDim.y) {
      const float value = to_float(x[r * stride + c]) - mean;
      few += kSquared ? value * value : value;
      if (++count % 32 == 0) {  // few terms at a time, so that the error does not grow
        total += few;
        few = 0;
      }
    }
    total += few;
  }
  shared[threadIdx.y * blockDim.x + threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || c >= width) return;
  for (int y = 1; y < static_cast<int>(blockDim.y); ++y)
    total += shared[y * blockDim.x + threadIdx.x];
  partial[static_cast<int64_t>(blockIdx.x) * width + c] = total;
}

// out[group] = the sum of the group's channels over all blocks; one block of threads per group.
__global__ void __launch_bounds__(kGroupThreads)
    join_groups(const float* partial, int blocks, int width, int channels, float* out) {
  __shared__ double shared[kGroupThreads];
  const int first = static_cast<int>(blockIdx.x) * channels;
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * channels; i += kGroupThreads)
    total += partial[static_cast<int64_t>(i / channels) * width + first + i % channels];
  shared[threadIdx.x] = total;
  __syncthreads();
  for (int apart = kGroupThreads / 2; apart > 0; apart /= 2) {
    if (static_cast<int>(threadIdx.x) < apart) shared[threadIdx.x] += shared[threadIdx.x + apart];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<float>(shared[0]);
}

__global__ void write_pixels(float* sums, int groups, int64_t pixels) {
  sums[groups] = static_cast<float>(pixels);
}

template <bool kSquared>
void sum_groups(Stream& stream, const TensorView& x, const TensorView& sums, int64_t groups,
                const TensorView& out) {
  const int64_t width = x[1], blocks = std::min<int64_t>(kPixelBlocks, x[0]);
  auto* partial = static_cast<float*>(
      cuda_queue(stream).scratch(static_cast<size_t>(blocks * width) * sizeof(float)));
  const auto columns = static_cast<unsigned>(
      std::min<uint64_t>(std::bit_ceil(static_cast<uint64_t>(width)), kGroupThreads));
  const Launch how{.grid = dim3(static_cast<unsigned>(blocks), blocks_for(width, columns)),
                   .block = dim3(columns, kGroupThreads / columns)};
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Pixels<T> pixels{.x = x.as<T>(),
                           .stride = x.row_stride(),
                           .count = x[0],
                           .width = static_cast<int>(width),
                           .groups = static_cast<int>(groups)};
    launch(stream, how, sum_pixels<T, kSquared>, pixels, sums.as<float>(), partial);
  });
  launch(stream, {.grid = dim3(static_cast<unsigned>(groups)), .block = dim3(kGroupThreads)},
         join_groups, partial, static_cast<int>(blocks), static_cast<int>(width),
         static_cast<int>(width / groups), out.as<float>());
}

void group_sums(Stream& stream, const TensorView& x, const TensorView& sums) {
  const int64_t groups = sums[0] - 1;
  sum_groups<false>(stream, x, sums, groups, sums);
  launch(stream, {.grid = dim3(1), .block = dim3(1)}, write_pixels, sums.as<float>(),
         static_cast<int>(groups), x[0]);
}

void group_squares(Stream& stream, const TensorView& x, const TensorView& sums,
                   const TensorView& squares) {
  sum_groups<true>(stream, x, sums, squares[0], squares);
}

// out = act(x * scale + offset) with one scale and offset per channel.
template <class T>
struct Groups {
  const T* x;
  T* out;
  const float *sums, *squares, *weight, *bias;
  int64_t rows, x_stride, out_stride;
  int width, groups;
  float eps;
  bool silu;
};

template <class T>
__global__ void __launch_bounds__(256, 6) norm_groups(Groups<T> p) {
  const int64_t c = column();
  if (c >= p.width) return;
  const int channels = p.width / p.groups, group = static_cast<int>(c) / channels;
  const float count = p.sums[p.groups] * static_cast<float>(channels);
  const float mean = p.sums[group] / count;
  const float scale = p.weight[c] / sqrtf(p.squares[group] / count + p.eps), bias = p.bias[c];
#pragma unroll 1
  for (int64_t r = first_row(); r < p.rows; r += row_step()) {
    float y[1] = {(to_float(p.x[r * p.x_stride + c]) - mean) * scale + bias};
    if (p.silu) y[0] = gate(y[0], y[0]);
    store_lanes<1>(y, p.out + r * p.out_stride + c);
  }
}

void group_norm(Stream& stream, const TensorView& x, const TensorView& sums,
                const TensorView& squares, const TensorView& weight, const TensorView& bias,
                float eps, Activation activation, const TensorView& out) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Groups<T> p{.x = x.as<T>(),
                      .out = out.as<T>(),
                      .sums = sums.as<float>(),
                      .squares = squares.as<float>(),
                      .weight = weight.as<float>(),
                      .bias = bias.as<float>(),
                      .rows = x[0],
                      .x_stride = x.row_stride(),
                      .out_stride = out.row_stride(),
                      .width = static_cast<int>(x[1]),
                      .groups = static_cast<int>(squares[0]),
                      .eps = eps,
                      .silu = activation == Activation::kSilu};
    launch(stream, over_rows(stream, x[0], x[1]), norm_groups<T>, p);
  });
}

}  // namespace

void fill_group_norm(Ops& ops) {
  ops.norm.group_sums = group_sums;
  ops.norm.group_squares = group_squares;
  ops.norm.group_norm = group_norm;
}

}  // namespace weft::cuda
