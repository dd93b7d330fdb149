// The merge of two attention states, with the operations of the reference in their order. It is
// compiled without contraction to fused multiply-add, so that swapping the states changes no bit.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/tables.h"

namespace weft::cuda {

namespace {

// Strides are in elements.
struct States {
  float* a;
  const float* b;
  float* lse_a;
  const float* lse_b;
  int64_t a_token, a_head, b_token, b_head;
  int64_t lse_a_head, lse_a_token, lse_b_head, lse_b_token;
  int64_t heads, groups;  // of N elements
};

// A block takes a token; its threads along y are the heads. All threads of a head hold both lse
// before one of them writes.
template <int N>
__global__ void __launch_bounds__(256) merge(States p) {
  const int64_t token = blockIdx.x;
  const auto threads_y = static_cast<int64_t>(blockDim.y);
  for (int64_t first = 0; first < p.heads; first += threads_y) {
    const int64_t head = first + threadIdx.y;
    const bool real = head < p.heads;
    float* lse = p.lse_a + head * p.lse_a_head + token * p.lse_a_token;
    const float la = real ? *lse : 0.0f;
    const float lb = real ? p.lse_b[head * p.lse_b_head + token * p.lse_b_token] : 0.0f;
    const float top = la < lb ? lb : la;
    __syncthreads();
    if (!real) continue;
    const bool empty = la == lb && top == -INFINITY;
    const float weight_a = expf(la - top), weight_b = expf(lb - top);
    const float total = weight_a + weight_b;
    for (int64_t group = threadIdx.x; group < p.groups; group += blockDim.x) {
      float* at = p.a + token * p.a_token + head * p.a_head + group * N;
      float a[N], b[N];
      load_lanes<N>(at, a);
      load_lanes<N>(p.b + token * p.b_token + head * p.b_head + group * N, b);
#pragma unroll
      for (int i = 0; i < N; ++i) a[i] = empty ? 0.0f : (weight_a * a[i] + weight_b * b[i]) / total;
      store_lanes<N>(a, at);
    }
    if (threadIdx.x == 0 && !empty) *lse = top + logf(total);
  }
}

bool wide_state(const TensorView& x) {
  return aligned16(x.data) && x[2] % kF32Lanes == 0 && x.stride[0] % kF32Lanes == 0 &&
         x.stride[1] % kF32Lanes == 0;
}

void merge_attention(Stream& stream, const TensorView& out_a, const TensorView& lse_a,
                     const TensorView& out_b, const TensorView& lse_b) {
  constexpr int64_t kThreads = 256;
  const bool wide = wide_state(out_a) && wide_state(out_b);
  const States p{.a = out_a.as<float>(),
                 .b = out_b.as<float>(),
                 .lse_a = lse_a.as<float>(),
                 .lse_b = lse_b.as<float>(),
                 .a_token = out_a.stride[0],
                 .a_head = out_a.stride[1],
                 .b_token = out_b.stride[0],
                 .b_head = out_b.stride[1],
                 .lse_a_head = lse_a.stride[0],
                 .lse_a_token = lse_a.stride[1],
                 .lse_b_head = lse_b.stride[0],
                 .lse_b_token = lse_b.stride[1],
                 .heads = out_a[1],
                 .groups = wide ? out_a[2] / kF32Lanes : out_a[2]};
  const int64_t x = std::min(p.groups, kThreads), y = std::min(p.heads, kThreads / x);
  const Launch how{.grid = dim3(blocks_for(out_a[0], 1)),
                   .block = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y))};
  launch(stream, how, wide ? merge<kF32Lanes> : merge<1>, p);
}

}  // namespace

void fill_merge(Ops& ops) { ops.attention.merge_attention = merge_attention; }

}  // namespace weft::cuda
