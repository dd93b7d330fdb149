// Rotary embedding: a thread keeps the cosines and sines of its pairs over the heads of a token. It
// is compiled without contraction to fused multiply-add: the bits are those of the other tables.
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/tables.h"

namespace weft::cuda {

namespace {

// Strides are in elements.
template <class T>
struct Heads {
  const T* x;
  T* out;
  int64_t x_token, x_head, out_token, out_head;
  Turns turns;
  unsigned heads, groups;
  unsigned half;  // with kHalves: elements between the two of a pair
};

// Pairs of neighbours: a thread's x is its group of N elements, its y the heads. A single pair has
// N = 2.
template <class T, int N>
__global__ void __launch_bounds__(256) rotate_neighbours(Heads<T> p) {
  constexpr int kPairs = N / 2;
  const unsigned group = blockIdx.y * blockDim.x + threadIdx.x;
  if (group >= p.groups) return;
  const GridPlace place = p.turns.place(blockIdx.x);
  float2 turn[kPairs];
#pragma unroll
  for (int k = 0; k < kPairs; ++k)
    turn[k] = p.turns.at(place, static_cast<int>(group * kPairs) + k);
  for (unsigned head = threadIdx.y; head < p.heads; head += blockDim.y) {
    const T* x = p.x + blockIdx.x * p.x_token + head * p.x_head + group * N;
    T* out = p.out + blockIdx.x * p.out_token + head * p.out_head + group * N;
    float value[N];
    if constexpr (N == 2) {
      value[0] = to_float(x[0]);
      value[1] = to_float(x[1]);
    } else {
      load_lanes<N>(x, value);
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) rotate(value[2 * k], value[2 * k + 1], turn[k]);
    if constexpr (N == 2) {
      out[0] = from_float<T>(value[0]);
      out[1] = from_float<T>(value[1]);
    } else {
      store_lanes<N>(value, out);
    }
  }
}

// Pairs of halves, on a line: a thread has N elements of the first half and their partners.
template <class T, int N>
__global__ void __launch_bounds__(256) rotate_halves(Heads<T> p) {
  const unsigned group = blockIdx.y * blockDim.x + threadIdx.x;
  const int64_t token = p.turns.first_token + blockIdx.x;
  if (group >= p.groups) return;
  float2 turn[N];
#pragma unroll
  for (int k = 0; k < N; ++k) turn[k] = p.turns.table[0][token * p.half + group * N + k];
  for (unsigned head = threadIdx.y; head < p.heads; head += blockDim.y) {
    const T* x = p.x + blockIdx.x * p.x_token + head * p.x_head + group * N;
    T* out = p.out + blockIdx.x * p.out_token + head * p.out_head + group * N;
    float a[N], b[N];
    load_lanes<N>(x, a);
    load_lanes<N>(x + p.half, b);
#pragma unroll
    for (int k = 0; k < N; ++k) rotate(a[k], b[k], turn[k]);
    store_lanes<N>(a, out);
    store_lanes<N>(b, out + p.half);
  }
}

// True if every head of x begins at a multiple of 16 bytes.
bool wide_heads(const TensorView& x, int lanes) {
  return aligned16(x.data) && (x[0] == 1 || x.stride[0] % lanes == 0) &&
         (x[1] == 1 || x.stride[1] % lanes == 0);
}

template <class T>
void run(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
         const TensorView& out) {
  constexpr int kLanes = sizeof(T) == 4 ? kF32Lanes : kBf16Lanes;
  constexpr int64_t kThreads = 256, kManyTokens = 1024;
  const bool halves = rope.order == RopePairs::kHalves;
  const int64_t span = halves ? x[2] / 2 : x[2];  // the elements that are cut into groups
  const bool wide = span % kLanes == 0 && wide_heads(x, kLanes) && wide_heads(out, kLanes);
  const int64_t groups = wide ? span / kLanes : halves ? span : span / 2;
  const Heads<T> p{.x = x.as<T>(),
                   .out = out.as<T>(),
                   .x_token = x.stride[0],
                   .x_head = x.stride[1],
                   .out_token = out.stride[0],
                   .out_head = out.stride[1],
                   .turns = turns_of(rope, first_token),
                   .heads = static_cast<unsigned>(x[1]),
                   .groups = static_cast<unsigned>(groups),
                   .half = static_cast<unsigned>(x[2] / 2)};
  // A block takes as many heads at once as fit, the same number for each thread.
  const int64_t across = std::min(groups, kThreads), at_once = kThreads / across;
  // For many tokens a thread takes a few heads, so that loading its cosines and sines pays off.
  const int64_t few = x[0] >= kManyTokens ? std::min<int64_t>(x[1], 3) : 1;
  const int64_t turns = std::max(few, (x[1] + at_once - 1) / at_once);
  const int64_t heads = (x[1] + turns - 1) / turns;
  const Launch how{.grid = dim3(blocks_for(x[0], 1), blocks_for(groups, across)),
                   .block = dim3(static_cast<unsigned>(across), static_cast<unsigned>(heads))};
  if (halves)
    launch(stream, how, wide ? rotate_halves<T, kLanes> : rotate_halves<T, 1>, p);
  else
    launch(stream, how, wide ? rotate_neighbours<T, kLanes> : rotate_neighbours<T, 2>, p);
}

void apply_rope(Stream& stream, const TensorView& x, const Rope& rope, int64_t first_token,
                const TensorView& out) {
  visit_dtype(x.dtype, [&](auto tag) { run<decltype(tag)>(stream, x, rope, first_token, out); });
}

}  // namespace

void fill_rope(Ops& ops) { ops.rope = {.apply_rope = apply_rope}; }

}  // namespace weft::cuda
