// Norms: a row is read once and held in registers if it fits. First comes the mean, then the sum of
// squared differences (two passes do not cancel). A few threads, a warp or a block take one row.
#include <cmath>
#include <limits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/tables.h"
#include "kernels/norm.h"

namespace weft::cuda {

namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 512;  // per row
constexpr unsigned kAllLanes = 0xffffffffu;

// The formula of a row's factor.
enum class Factor : uint8_t {
  kMeanSquare,  // 1 / sqrt(sum / width + eps)
  kGiven,       // 1 / sqrt(sums[row] / width + eps)
  kNorm,        // root / max(sqrt(sum), 1e-12)
};

// out = act((x - mean) * factor * (weight_offset + weight) + bias)
template <class In, class Out>
struct Rows {
  const In* x;
  Out* out;
  const float* weight;  // null: 1
  const float* bias;    // null: 0
  float* sums;
  int64_t rows, x_stride, out_stride;  // in elements
  int heads;                           // rows that each stretch of `x_outer` elements holds; 0: all
  int64_t x_outer, out_outer;
  int groups;  // of N elements, of one row
  float size, width, root, eps, weight_offset;
  Factor factor;
  bool silu;
};

// Returns the sum over the blockDim.x threads of a row, the same to all of them. blockDim.x is a
// power of two up to a warp, or whole warps, which then are the block; `partial` is shared memory.
__device__ __forceinline__ float row_sum(float value, float* partial) {
  const int threads = static_cast<int>(blockDim.x);
  for (int apart = min(threads, kWarp) / 2; apart > 0; apart /= 2)
    value += __shfl_xor_sync(kAllLanes, value, apart);
  if (threads <= kWarp) return value;
  __syncthreads();  // the previous sum has been read
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < threads / kWarp; ++warp) sum += partial[warp];
  return sum;
}

// Adds in pairs, so that the error does not grow with N.
template <int N>
__device__ __forceinline__ float lane_sum(float (&lanes)[N]) {
#pragma unroll
  for (int apart = N / 2; apart > 0; apart /= 2)
#pragma unroll
    for (int i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  return lanes[0];
}

template <int N>
__device__ __forceinline__ void add_lanes(const float (&x)[N], float (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] += x[i];
}

template <int N>
__device__ __forceinline__ void add_squares(const float (&x)[N], float mean, float (&sums)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = fmaf(x[i] - mean, x[i] - mean, sums[i]);
}

// The offset of a row, of x or of out.
template <class In, class Out>
__device__ __forceinline__ int64_t row_at(const Rows<In, Out>& p, int64_t row, int64_t stride,
                                          int64_t outer) {
  if (p.heads == 0) return row * stride;
  const int64_t stretch = row / p.heads;
  return stretch * outer + (row - stretch * p.heads) * stride;
}

template <class In, class Out>
__device__ __forceinline__ float row_factor(const Rows<In, Out>& p, float sum) {
  if (p.factor == Factor::kNorm) return p.root / fmaxf(sqrtf(sum), 1e-12f);
  return 1.0f / sqrtf(sum / p.width + p.eps);
}

template <int N, class In, class Out>
__device__ __forceinline__ void finish(const Rows<In, Out>& p, float (&x)[N], int group, float mean,
                                       float factor, Out* out) {
  const int64_t i = static_cast<int64_t>(group) * N;
  float weight[N], bias[N];
  if (p.weight) load_lanes<N>(p.weight + i, weight);
  if (p.bias) load_lanes<N>(p.bias + i, bias);
#pragma unroll
  for (int lane = 0; lane < N; ++lane) {
    x[lane] = (x[lane] - mean) * factor;
    if (p.weight) x[lane] *= p.weight_offset + weight[lane];
    if (p.bias) x[lane] += bias[lane];
  }
  if (p.silu) {
#pragma unroll
    for (int lane = 0; lane < N; ++lane) x[lane] = gate(x[lane], x[lane]);
  }
  store_lanes<N>(x, out + i);
}

// For rows of at most K groups per thread: the row stays in registers.
template <bool kCentred, class In, class Out, int N, int K>
__global__ void __launch_bounds__(kMaxThreads, 1) norm_held(Rows<In, Out> p) {
  __shared__ float partial[kMaxThreads / kWarp];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool real =
      row < p.rows;  // threads without a row still take part in the sums of their warp
  const In* const x_row = p.x + row_at(p, row, p.x_stride, p.x_outer);
  Out* const out_row = p.out + row_at(p, row, p.out_stride, p.out_outer);
  float x[K][N];
  float lanes[N] = {};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int group = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (!real || group >= p.groups) continue;
    load_lanes<N>(x_row + static_cast<int64_t>(group) * N, x[k]);
  }
  float mean = 0;
  if constexpr (kCentred) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (real && static_cast<int>(threadIdx.x + k * blockDim.x) < p.groups)
        add_lanes<N>(x[k], lanes);
    mean = row_sum(lane_sum<N>(lanes), partial) / p.size;
  }
  float sum = 0;
  if (p.factor == Factor::kGiven) {
    sum = real ? p.sums[row] : 0;
  } else {
    float squares[N] = {};
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (real && static_cast<int>(threadIdx.x + k * blockDim.x) < p.groups)
        add_squares<N>(x[k], mean, squares);
    sum = row_sum(lane_sum<N>(squares), partial);
  }
  if (!real) return;
  const float factor = row_factor(p, sum);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int group = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (group < p.groups) finish<N>(p, x[k], group, mean, factor, out_row);
  }
}

template <int N, class T>
__device__ __forceinline__ float sum_row(const T* x, int groups, float mean, bool squared,
                                         float* partial) {
  float lanes[N] = {};
  for (int group = static_cast<int>(threadIdx.x); group < groups;
       group += static_cast<int>(blockDim.x)) {
    float value[N];
    load_lanes<N>(x + static_cast<int64_t>(group) * N, value);
    if (squared)
      add_squares<N>(value, mean, lanes);
    else
      add_lanes<N>(value, lanes);
  }
  return row_sum(lane_sum<N>(lanes), partial);
}

// For rows of any length: the row is read again for every sum and for the result.
template <bool kCentred, class In, class Out, int N>
__global__ void __launch_bounds__(kMaxThreads) norm_read_again(Rows<In, Out> p) {
  __shared__ float partial[kMaxThreads / kWarp];
  const int64_t row = blockIdx.x;
  const In* x = p.x + row_at(p, row, p.x_stride, p.x_outer);
  Out* const out = p.out + row_at(p, row, p.out_stride, p.out_outer);
  const float mean = kCentred ? sum_row<N>(x, p.groups, 0, false, partial) / p.size : 0;
  const float sum =
      p.factor == Factor::kGiven ? p.sums[row] : sum_row<N>(x, p.groups, mean, true, partial);
  const float factor = row_factor(p, sum);
  for (int group = static_cast<int>(threadIdx.x); group < p.groups;
       group += static_cast<int>(blockDim.x)) {
    float value[N];
    load_lanes<N>(x + static_cast<int64_t>(group) * N, value);
    finish<N>(p, value, group, mean, factor, out);
  }
}

// sums[row] = the sum of x^2. blockDim.x is a power of two up to a warp, or the block.
template <class T, int N>
__global__ void __launch_bounds__(kMaxThreads) row_squares(Rows<T, T> p) {
  __shared__ float partial[kMaxThreads / kWarp];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool real = row < p.rows;
  const T* x = p.x + (real ? row : 0) * p.x_stride;
  const float sum = sum_row<N>(x, real ? p.groups : 0, 0, true, partial);
  if (real && threadIdx.x == 0) p.sums[row] = sum;
}

// Chooses the threads of a row so that each has `held` groups, at most kMaxThreads; short rows
// share a block.
Launch over_whole_rows(int64_t rows, int64_t groups, int64_t held) {
  constexpr int64_t kThreads = 256;
  const auto each = static_cast<uint64_t>((groups + held - 1) / held);
  const auto x = static_cast<unsigned>(
      each <= kWarp ? std::bit_ceil(each)
                    : std::min<uint64_t>((each + kWarp - 1) / kWarp * kWarp, kMaxThreads));
  const unsigned y = x <= kWarp ? kThreads / x : 1;
  return {.grid = dim3(blocks_for(rows, y)), .block = dim3(x, y)};
}

template <bool kCentred, int N, class In, class Out>
void run_typed(Stream& stream, const Rows<In, Out>& p) {
  const auto held = [&](auto kernel, int groups) {
    launch(stream, over_whole_rows(p.rows, p.groups, groups), kernel, p);
  };
  // Rows of one warp or less need no barrier; few threads with several groups each have more loads
  // in flight.
  constexpr int kMost = 4;
  if constexpr (N > 1) {
    if (p.groups <= kWarp) return held(norm_held<kCentred, In, Out, N, 1>, 1);
    if (p.groups <= 2 * kWarp || (p.groups > 4 * kWarp && p.groups <= 8 * kWarp))
      return held(norm_held<kCentred, In, Out, N, 2>, 2);
  }
  if (p.groups <= kMost * kMaxThreads) return held(norm_held<kCentred, In, Out, N, kMost>, kMost);
  launch(stream, {.grid = dim3(blocks_for(p.rows, 1)), .block = dim3(kMaxThreads)},
         norm_read_again<kCentred, In, Out, N>, p);
}

template <class In, class Out>
Rows<In, Out> make_rows(const TensorView& x, const TensorView& out) {
  CHECK(x[-1] <= std::numeric_limits<int>::max(), "x", x.to_string_shape());
  const auto size = static_cast<double>(x[-1]);
  const bool in_heads = !x.rows_collapse() || (out && !out.rows_collapse());
  const auto head_stride = [&](const TensorView& of) {
    return in_heads ? of.stride[1] : of.row_stride();
  };
  return {.x = x.as<In>(),
          .out = out ? out.as<Out>() : nullptr,
          .weight = nullptr,
          .bias = nullptr,
          .sums = nullptr,
          .rows = x.rows(),
          .x_stride = head_stride(x),
          .out_stride = out ? head_stride(out) : 0,
          .heads = in_heads ? static_cast<int>(x[1]) : 0,
          .x_outer = in_heads ? x.stride[0] : 0,
          .out_outer = in_heads ? out.stride[0] : 0,
          .groups = 0,
          .size = static_cast<float>(size),
          .width = static_cast<float>(size),
          .root = static_cast<float>(std::sqrt(size)),
          .eps = 0,
          .weight_offset = 0,
          .factor = Factor::kMeanSquare,
          .silu = false};
}

// Calls run(lanes as a constant) with the lanes that all views allow. The number depends on the
// dtype of x, so that sums have the same order for any dtype of the result.
template <class In, class Run>
void with_lanes(std::initializer_list<TensorView> views, Run&& run) {
  constexpr int kLanes = sizeof(In) == 4 ? kF32Lanes : kBf16Lanes;
  const bool wide =
      std::ranges::all_of(views, [](const TensorView& x) { return wide_rows(x, kLanes); });
  if (wide)
    run(std::integral_constant<int, kLanes>());
  else
    run(std::integral_constant<int, 1>());
}

// `set` fills in the members of Rows that the op needs.
template <bool kCentred, class In, class Out, class Set>
void run_rows(Stream& stream, const TensorView& x, const TensorView& weight, const TensorView& bias,
              const TensorView& out, Set&& set) {
  Rows<In, Out> p = make_rows<In, Out>(x, out);
  p.weight = weight ? weight.as<float>() : nullptr;
  p.bias = bias ? bias.as<float>() : nullptr;
  set(p);
  with_lanes<In>({x, out, weight, bias}, [&](auto lanes) {
    p.groups = static_cast<int>(x[-1] / lanes);
    run_typed<kCentred, lanes>(stream, p);
  });
}

template <bool kCentred, class Set>
void run(Stream& stream, const TensorView& x, const TensorView& weight, const TensorView& bias,
         const TensorView& out, Set&& set) {
  if (x.dtype == DType::kBF16)
    run_rows<kCentred, bf16, bf16>(stream, x, weight, bias, out, set);
  else if (out.dtype == DType::kBF16)
    run_rows<kCentred, float, bf16>(stream, x, weight, bias, out, set);
  else
    run_rows<kCentred, float, float>(stream, x, weight, bias, out, set);
}

void layer_norm(Stream& stream, const TensorView& x, const TensorView& weight,
                const TensorView& bias, float eps, const TensorView& out) {
  run<true>(stream, x, weight, bias, out, [&](auto& p) { p.eps = eps; });
}

void modulated_layer_norm(Stream& stream, const TensorView& x, const TensorView& scale,
                          const TensorView& shift, float eps, const TensorView& out) {
  run<true>(stream, x, scale, shift, out, [&](auto& p) {
    p.eps = eps;
    p.weight_offset = 1;
  });
}

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float eps,
              const TensorView& out) {
  run<false>(stream, x, weight, {}, out, [&](auto& p) { p.eps = eps; });
}

void sum_squares(Stream& stream, const TensorView& x, const TensorView& sums) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    Rows<T, T> p = make_rows<T, T>(x, {});
    p.sums = sums.as<float>();
    with_lanes<T>({x}, [&](auto lanes) {
      constexpr int kGroupsOfAThread = 4;
      p.groups = static_cast<int>(x[-1] / lanes);
      launch(stream, over_whole_rows(p.rows, p.groups, kGroupsOfAThread), row_squares<T, lanes>, p);
    });
  });
}

void rms_scale(Stream& stream, const TensorView& x, const TensorView& sums, int64_t width,
               const TensorView& weight, float eps, const TensorView& out) {
  run<false>(stream, x, weight, {}, out, [&](auto& p) {
    p.eps = eps;
    p.width = static_cast<float>(width);
    p.sums = sums.as<float>();
    p.factor = Factor::kGiven;
  });
}

void channel_rms_norm(Stream& stream, const TensorView& x, const TensorView& gamma,
                      Activation activation, const TensorView& out) {
  run<false>(stream, x, gamma, {}, out, [&](auto& p) {
    p.factor = Factor::kNorm;
    p.silu = activation == Activation::kSilu;
  });
}

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

void fill_norm(Ops& ops) {
  ops.norm = {.layer_norm = layer_norm,
              .modulated_layer_norm = modulated_layer_norm,
              .rms_norm = rms_norm,
              .sum_squares = sum_squares,
              .rms_scale = rms_scale,
              .channel_rms_norm = channel_rms_norm,
              .group_sums = group_sums,
              .group_squares = group_squares,
              .group_norm = group_norm};
}

}  // namespace weft::cuda
