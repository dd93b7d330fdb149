// Convolutions: 1x1x1 kernels are linear layers over pixels, and channels in multiples of eight go
// to the library. The rest, and what the library refuses, is computed by an implicit GEMM: the
// kernel multiplies the pixels' windows as rows of a matrix without writing them out. Weights are
// [Cout, kt kh kw Cin] for all of them.
#include <algorithm>

#include "kernels/cuda/conv_library.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed_matrix.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/tables.h"
#include "kernels/cuda/vector8.cuh"

namespace weft::cuda {

namespace {

constexpr int kThreads = 256;

struct Problem {
  const void* x;       // [frames, height, width, in]
  const void* weight;  // [out_channels, weight_stride]
  const float* bias;   // or null
  void* out;           // [pixels, out_channels]
  int64_t weight_stride, pixels;
  int frames, height, width, in;
  int out_height, out_width, out_channels;
  int kt, kh, kw;
  int stride_t, stride_h, stride_w;
  int front, above, left;
};

// Position k of a window's row is tap (dt, dh, dw) and channel c, with c fastest.
struct Tap {
  int dt, dh, dw, c;
};
__device__ __forceinline__ Tap tap_at(const Problem& p, int64_t k) {
  const int64_t tap = k / p.in;
  const int plane = p.kh * p.kw;
  return {static_cast<int>(tap / plane), static_cast<int>(tap % plane / p.kw),
          static_cast<int>(tap % p.kw), static_cast<int>(k % p.in)};
}
__device__ __forceinline__ void advance(const Problem& p, Tap& tap, int elements) {
  tap.c += elements;
  while (tap.c >= p.in) {
    tap.c -= p.in;
    if (++tap.dw < p.kw) continue;
    tap.dw = 0;
    if (++tap.dh < p.kh) continue;
    tap.dh = 0;
    ++tap.dt;
  }
}

// The first frame, row and column of an output pixel's window. If there is no such pixel, they lie
// outside of x.
struct Window {
  int frame, row, column;
};
__device__ __forceinline__ Window window_of(const Problem& p, int64_t pixel) {
  if (pixel >= p.pixels) return {1 << 30, 0, 0};
  const int64_t line = pixel / p.out_width;
  return {static_cast<int>(line / p.out_height) * p.stride_t - p.front,
          static_cast<int>(line % p.out_height) * p.stride_h - p.above,
          static_cast<int>(pixel % p.out_width) * p.stride_w - p.left};
}
// Returns the offset of the element in x, or -1 in the padding and after the last tap.
__device__ __forceinline__ int64_t offset_of(const Problem& p, const Window& window,
                                             const Tap& tap) {
  const int frame = window.frame + tap.dt, row = window.row + tap.dh,
            column = window.column + tap.dw;
  if (tap.dt >= p.kt || frame < 0 || frame >= p.frames || row < 0 || row >= p.height ||
      column < 0 || column >= p.width)
    return -1;
  return ((int64_t{frame} * p.height + row) * p.width + column) * p.in + tap.c;
}

// In bf16 a block computes 128 pixels by kColumns channels, 32 elements of k at a time, with
// kStages - 1 such steps in flight. Shared rows are 80 bytes apart, so that eight of them cover all
// banks.
constexpr int kRows = 128, kDepth = 32, kStages = 3, kPitch = kDepth + 8;

template <int kColumns>
constexpr size_t shared_bytes() {
  return sizeof(bf16) * kStages * (kRows + kColumns) * kPitch;
}

// Loads the thread's two pieces of eight elements, from the windows of its two pixels.
template <bool kVector>
__device__ __forceinline__ void stage_pixels(const Problem& p, const Window (&windows)[2], Tap tap,
                                             bf16* tile) {
  const auto* x = static_cast<const bf16*>(p.x);
  const int piece = static_cast<int>(threadIdx.x) % 4, row = static_cast<int>(threadIdx.x) / 4;
  bf16* to[2] = {tile + row * kPitch + piece * 8, tile + (row + 64) * kPitch + piece * 8};
  if constexpr (kVector) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = offset_of(p, windows[i], tap);
      copy_async16(to[i], x + (at < 0 ? 0 : at), at >= 0);
    }
  } else {
    uint32_t packed[2][4] = {};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t at = offset_of(p, windows[i], tap);
        if (at >= 0) packed[i][e / 2] |= static_cast<uint32_t>(x[at].bits) << e % 2 * 16;
      }
      advance(p, tap, 1);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<uint4*>(to[i]) =
          make_uint4(packed[i][0], packed[i][1], packed[i][2], packed[i][3]);
  }
}

template <int kColumns>
__device__ __forceinline__ void stage_weights(const Problem& p, int first_channel, int64_t k,
                                              bf16* tile) {
  const auto* weight = static_cast<const bf16*>(p.weight);
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kColumns * 4; i += kThreads) {
    const int row = i / 4, channel = first_channel + row;
    const int64_t at = k + i % 4 * 8;
    const bool real = channel < p.out_channels && at < p.weight_stride;
    copy_async16(tile + row * kPitch + i % 4 * 8,
                 weight + (real ? channel * p.weight_stride + at : 0), real);
  }
}

template <int kPixelTiles, int kChannelTiles>
__device__ __forceinline__ void multiply_stage(const bf16* pixels, const bf16* weights,
                                               float (&acc)[kPixelTiles][kChannelTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, matrix = lane / 8, row = lane % 8;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    uint32_t a[kPixelTiles][4];
#pragma unroll
    for (int m = 0; m < kPixelTiles; ++m)
      load_matrices(a[m], pixels + (m * 16 + matrix % 2 * 8 + row) * kPitch + k + matrix / 2 * 8);
#pragma unroll
    for (int n = 0; n < kChannelTiles; n += 2) {
      uint32_t b[4];
      load_matrices(b, weights + (n * 8 + matrix / 2 * 8 + row) * kPitch + k + matrix % 2 * 8);
      const uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
      for (int m = 0; m < kPixelTiles; ++m) {
        multiply_bf16(acc[m][n], a[m], left);
        multiply_bf16(acc[m][n + 1], a[m], right);
      }
    }
  }
}

__device__ __forceinline__ void store_pair(const Problem& p, int64_t pixel, int channel, float low,
                                           float high) {
  if (pixel >= p.pixels || channel >= p.out_channels) return;
  auto* at = static_cast<bf16*>(p.out) + pixel * p.out_channels + channel;
  if (p.bias) low += p.bias[channel];
  if (channel + 1 == p.out_channels) {
    *at = to_bf16(low);
    return;
  }
  if (p.bias) high += p.bias[channel + 1];
  if (p.out_channels % 2 == 0 && reinterpret_cast<uintptr_t>(at) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(at) = pack_bf16(low, high);
  } else {
    at[0] = to_bf16(low);
    at[1] = to_bf16(high);
  }
}

// kPixelWarps of the eight warps divide the pixels, the others the channels.
template <int kColumns, int kPixelWarps, bool kVector>
__global__ void __launch_bounds__(kThreads) conv_bf16_kernel(Problem p) {
  constexpr int kChannelWarps = 8 / kPixelWarps;
  constexpr int kPixelTiles = kRows / kPixelWarps / 16,
                kChannelTiles = kColumns / kChannelWarps / 8;
  constexpr int kPixelTile = kRows * kPitch, kWeightTile = kColumns * kPitch;
  bf16* pixels = dynamic_shared<bf16>();
  bf16* weights = pixels + kStages * kPixelTile;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t first_pixel = int64_t{blockIdx.x} * kRows;
  const int first_channel = static_cast<int>(blockIdx.y) * kColumns;
  const Window windows[2] = {window_of(p, first_pixel + thread / 4),
                             window_of(p, first_pixel + thread / 4 + 64)};
  Tap tap = tap_at(p, thread % 4 * 8);
  const int steps = static_cast<int>((p.weight_stride + kDepth - 1) / kDepth);
  const auto stage = [&](int step) {
    if (step < steps) {
      stage_pixels<kVector>(p, windows, tap, pixels + step % kStages * kPixelTile);
      stage_weights<kColumns>(p, first_channel, int64_t{step} * kDepth,
                              weights + step % kStages * kWeightTile);
      advance(p, tap, kDepth);
    }
    copy_async_commit();
  };
  for (int step = 0; step < kStages - 1; ++step) stage(step);
  const int pixel_warp = warp % kPixelWarps * kPixelTiles * 16,
            channel_warp = warp / kPixelWarps * kChannelTiles * 8;
  float acc[kPixelTiles][kChannelTiles][4] = {};
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // all threads' copies of this step have arrived, and all have read the step
                      // before
    stage(step + kStages - 1);
    multiply_stage(pixels + step % kStages * kPixelTile + pixel_warp * kPitch,
                   weights + step % kStages * kWeightTile + channel_warp * kPitch, acc);
  }
  copy_async_wait<0>();
#pragma unroll
  for (int m = 0; m < kPixelTiles; ++m)
#pragma unroll
    for (int n = 0; n < kChannelTiles; ++n) {
      const int64_t pixel = first_pixel + pixel_warp + m * 16 + lane / 4;
      const int channel = first_channel + channel_warp + n * 8 + lane % 4 * 2;
      store_pair(p, pixel, channel, acc[m][n][0], acc[m][n][1]);
      store_pair(p, pixel + 8, channel, acc[m][n][2], acc[m][n][3]);
    }
}

// In f32 a block computes 64 pixels by 64 channels, 16 elements of k at a time, 4 x 4 results per
// thread.
constexpr int kSide = 64, kDepthF32 = 16;

__global__ void __launch_bounds__(kThreads) conv_f32_kernel(Problem p) {
  __shared__ __align__(16) float pixels[kDepthF32][kSide + 4];
  __shared__ __align__(16) float weights[kDepthF32][kSide + 4];
  const int thread = static_cast<int>(threadIdx.x), across = thread % 16, down = thread / 16;
  const int64_t first_pixel = int64_t{blockIdx.x} * kSide;
  const int first_channel = static_cast<int>(blockIdx.y) * kSide;
  const auto* x = static_cast<const float*>(p.x);
  const auto* weight = static_cast<const float*>(p.weight);
  Window windows[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) windows[i] = window_of(p, first_pixel + down + i * 16);
  Tap tap = tap_at(p, across);
  float acc[4][4] = {};
  for (int64_t k = 0; k < p.weight_stride; k += kDepthF32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = offset_of(p, windows[i], tap);
      pixels[across][down + i * 16] = at < 0 ? 0.0f : x[at];
      const int channel = first_channel + down + i * 16;
      weights[across][down + i * 16] = channel < p.out_channels && k + across < p.weight_stride
                                           ? weight[channel * p.weight_stride + k + across]
                                           : 0.0f;
    }
    advance(p, tap, kDepthF32);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepthF32; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(&pixels[i][down * 4]);
      const float4 b = *reinterpret_cast<const float4*>(&weights[i][across * 4]);
      const float left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[r][c] = fmaf(left[r], right[c], acc[r][c]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t pixel = first_pixel + down * 4 + r;
      const int channel = first_channel + across * 4 + c;
      if (pixel < p.pixels && channel < p.out_channels)
        static_cast<float*>(p.out)[pixel * p.out_channels + channel] =
            acc[r][c] + (p.bias ? p.bias[channel] : 0.0f);
    }
}

template <int kColumns, int kPixelWarps>
void start_bf16(const Stream& stream, const Problem& p) {
  const dim3 grid(blocks_for(p.pixels, kRows), blocks_for(p.out_channels, kColumns));
  const bool vector = p.in % 8 == 0 && aligned16(p.x);
  launch(stream, {grid, kThreads, shared_bytes<kColumns>()},
         vector ? conv_bf16_kernel<kColumns, kPixelWarps, true>
                : conv_bf16_kernel<kColumns, kPixelWarps, false>,
         p);
}

void run_kernel(const Stream& stream, DType dtype, const Problem& p) {
  if (dtype == DType::kF32) {
    const dim3 grid(blocks_for(p.pixels, kSide), blocks_for(p.out_channels, kSide));
    launch(stream, {grid, kThreads}, conv_f32_kernel, p);
  } else if (p.out_channels <= 16) {
    start_bf16<16, 8>(stream, p);
  } else if (p.out_channels <= 64) {
    start_bf16<64, 4>(stream, p);
  } else {
    start_bf16<128, 4>(stream, p);
  }
}

// Returns false if the library does not take the call.
bool run_library(const Stream& stream, const TensorView& x, const PackedConv& packed,
                 const PackedLinear& matrix, const ConvArgs& args, const TensorView& out) {
  const void* weight = packed_matrix(matrix).weight.view().data;
  if (packed.in() % 8 || packed.out() % 8 || !aligned16(x.data) || !aligned16(out.data))
    return false;
  const float* bias = matrix.bias();
  const bool wide = x.dtype == DType::kF32;  // the library has no f32 convolution with a bias
  if (!library_conv(stream, {.dtype = x.dtype,
                             .x_shape = {x[0], x[1], x[2], x[3]},
                             .out_shape = {out[0], out[1], out[2], out[3]},
                             .kernel = packed.kernel(),
                             .args = args,
                             .x = x.data,
                             .weight = weight,
                             .bias = wide ? nullptr : bias,
                             .out = out.data}))
    return false;
  if (wide && bias)
    finish_rows(stream, {.rows = out.rows(),
                         .columns = out[3],
                         .sums = out.data,
                         .sums_stride = out[3],
                         .bias = bias,
                         .out = out.data,
                         .out_dtype = DType::kF32,
                         .out_stride = out[3]});
  return true;
}

struct ConvMatrix : PackedStorage {
  PackedLinear matrix;
  void for_buffers(const BufferVisitor& visit) override { matrix.for_buffers(visit); }
};

bool is_linear(const TensorView& x, const PackedConv& packed, const ConvArgs& args) {
  return packed.kernel() == std::array<int64_t, 3>{1, 1, 1} &&
         args.stride == std::array<int64_t, 3>{1, 1, 1} && args.pad_front == 0 &&
         args.pad_h == std::array<int64_t, 2>{} && args.pad_w == std::array<int64_t, 2>{};
}

void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out) {
  const auto& matrix = packed.storage<ConvMatrix>().matrix;
  if (is_linear(x, packed, args)) {
    cuda_ops().linear.linear(stream, x.reshape({x.rows(), x[3]}), matrix, LinearActivation::kNone,
                             out.reshape({out.rows(), out[3]}));
    return;
  }
  if (run_library(stream, x, packed, matrix, args, out)) return;
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  const auto [kt, kh, kw] = packed.kernel();
  run_kernel(stream, x.dtype,
             {.x = x.data,
              .weight = packed_matrix(matrix).weight.view().data,
              .bias = matrix.bias(),
              .out = out.data,
              .weight_stride = packed_matrix(matrix).stride(),
              .pixels = out.rows(),
              .frames = narrow(x[0]),
              .height = narrow(x[1]),
              .width = narrow(x[2]),
              .in = narrow(x[3]),
              .out_height = narrow(out[1]),
              .out_width = narrow(out[2]),
              .out_channels = narrow(out[3]),
              .kt = narrow(kt),
              .kh = narrow(kh),
              .kw = narrow(kw),
              .stride_t = narrow(args.stride[0]),
              .stride_h = narrow(args.stride[1]),
              .stride_w = narrow(args.stride[2]),
              .front = narrow(args.pad_front),
              .above = narrow(args.pad_h[0]),
              .left = narrow(args.pad_w[0])});
}

// Packs the matrix [Cout, kt kh kw Cin], which every kernel uses.
PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias,
                     DType dtype) {
  PackedConv packed(weight, dtype);
  packed.make_storage<ConvMatrix>().matrix =
      pack_matrix(stream, weight.permute({0, 2, 3, 4, 1}), bias, dtype, WeightFormat::kCompute);
  return packed;
}

}  // namespace

void fill_conv(Ops& ops) {
  ops.conv.pack_conv = pack_conv;
  ops.conv.conv3d = conv3d;
}

}  // namespace weft::cuda
