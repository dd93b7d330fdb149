// Norms: a row is read once and held in registers if it fits. First comes the mean, then the sum of
// squared differences (two passes do not cancel). A few threads, a warp or a block take one row.
#include <cmath>
#include <limits>

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/tables.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"

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
  bool in_heads;                       // each stretch of `x_outer` elements holds `heads` rows
  Divisor heads;
  int64_t x_outer, out_outer;
  int groups;  // of N elements, of one row
  float size, width, root, eps, weight_offset;
  Factor factor;
  bool silu;
  // x += added * gate comes first, where `added` is not null.
  const float* added;
  const float* gate;
  int64_t added_stride;
  // A rotation of neighbours comes last, where kTurned.
  Turns turns;
  Divisor groups_of_head, rows_of_token;
  bool same_pairs;  // all groups of a thread have the pairs of its first
};

// Returns the sum over the blockDim.x threads of a row, the same to all of them. blockDim.x is a
// power of two up to a warp, or whole warps, which then are the block; `partial` is shared memory
// that no other sum of the kernel uses.
__device__ __forceinline__ float row_sum(float value, float* partial) {
  const int threads = static_cast<int>(blockDim.x);
  for (int apart = min(threads, kWarp) / 2; apart > 0; apart /= 2)
    value += __shfl_xor_sync(kAllLanes, value, apart);
  if (threads <= kWarp) return value;
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
  if (!p.in_heads) return row * stride;
  const auto index = static_cast<uint32_t>(row);
  return p.heads.quotient(index) * outer + p.heads.remainder(index) * stride;
}

template <class In, class Out>
__device__ __forceinline__ float row_factor(const Rows<In, Out>& p, float sum) {
  if (p.factor == Factor::kNorm) return p.root / fmaxf(sqrtf(sum), 1e-12f);
  return 1.0f / sqrtf(sum / p.width + p.eps);
}

// x += added * gate, which also goes to memory.
template <int N, class In, class Out>
__device__ __forceinline__ void add_gated(const Rows<In, Out>& p, float (&x)[N], int64_t row,
                                          int group, In* to) {
  const int64_t i = static_cast<int64_t>(group) * N;
  float added[N], gate[N];
  load_lanes<N>(p.added + row * p.added_stride + i, added);
  load_lanes<N>(p.gate + i, gate);
#pragma unroll
  for (int lane = 0; lane < N; ++lane) x[lane] += added[lane] * gate[lane];
  store_lanes<N>(x, to + i);
}

// The cosines and sines of a group's pairs.
template <int N>
struct GroupTurns {
  float2 turn[N / 2];
};

template <int N, class In, class Out>
__device__ __forceinline__ GroupTurns<N> load_turns(const Rows<In, Out>& p, int group,
                                                    const GridPlace& place) {
  const int pair = static_cast<int>(p.groups_of_head.remainder(group)) * (N / 2);
  GroupTurns<N> turns;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) turns.turn[i] = p.turns.at(place, pair + i);
  return turns;
}

// Rounds to the dtype of the result, as a norm of its own does, and rotates.
template <class Out, int N>
__device__ __forceinline__ void turn(float (&x)[N], const GroupTurns<N>& turns) {
#pragma unroll
  for (int lane = 0; lane < N; lane += 2) {
    x[lane] = to_float(from_float<Out>(x[lane]));
    x[lane + 1] = to_float(from_float<Out>(x[lane + 1]));
    rotate(x[lane], x[lane + 1], turns.turn[lane / 2]);
  }
}

// A row's statistics.
struct RowFacts {
  float mean, factor;
};

template <bool kTurned, int N, class In, class Out>
__device__ __forceinline__ void finish(const Rows<In, Out>& p, float (&x)[N], int group,
                                       const RowFacts& row,
                                       const GroupTurns<kTurned ? N : 2>& turns, Out* out) {
  const int64_t i = static_cast<int64_t>(group) * N;
  float weight[N], bias[N];
  if (p.weight) load_lanes<N>(p.weight + i, weight);
  if (p.bias) load_lanes<N>(p.bias + i, bias);
#pragma unroll
  for (int lane = 0; lane < N; ++lane) {
    x[lane] = (x[lane] - row.mean) * row.factor;
    if (p.weight) x[lane] *= p.weight_offset + weight[lane];
    if (p.bias) x[lane] += bias[lane];
  }
  if (p.silu) {
#pragma unroll
    for (int lane = 0; lane < N; ++lane) x[lane] = gate(x[lane], x[lane]);
  }
  if constexpr (kTurned) turn<Out>(x, turns);
  store_lanes<N>(x, out + i);
}

// For rows of at most K groups per thread: the row stays in registers.
template <bool kCentred, bool kTurned, class In, class Out, int N, int K>
__global__ void __launch_bounds__(kMaxThreads, 1) norm_held(Rows<In, Out> p) {
  __shared__ float partial[2][kMaxThreads / kWarp];  // one for each sum
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
    if constexpr (kCentred && std::is_same_v<In, float>)
      if (p.added) add_gated<N>(p, x[k], row, group, const_cast<In*>(x_row));
  }
  GridPlace place{};
  GroupTurns<kTurned ? N : 2> turns{};
  if constexpr (kTurned) {  // these loads need not wait for the sum
    if (real) {
      place = p.turns.place(p.rows_of_token.quotient(static_cast<uint32_t>(row)));
      turns = load_turns<N>(p, static_cast<int>(threadIdx.x), place);
    }
  }
  float mean = 0;
  if constexpr (kCentred) {
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (real && static_cast<int>(threadIdx.x + k * blockDim.x) < p.groups)
        add_lanes<N>(x[k], lanes);
    mean = row_sum(lane_sum<N>(lanes), partial[0]) / p.size;
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
    sum = row_sum(lane_sum<N>(squares), partial[1]);
  }
  if (!real) return;
  const RowFacts facts{.mean = mean, .factor = row_factor(p, sum)};
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const int group = static_cast<int>(threadIdx.x + k * blockDim.x);
    if (group >= p.groups) continue;
    if constexpr (kTurned)
      if (k > 0 && !p.same_pairs) turns = load_turns<N>(p, group, place);
    finish<kTurned, N>(p, x[k], group, facts, turns, out_row);
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
  __shared__ float partial[2][kMaxThreads / kWarp];
  const int64_t row = blockIdx.x;
  const In* x = p.x + row_at(p, row, p.x_stride, p.x_outer);
  Out* const out = p.out + row_at(p, row, p.out_stride, p.out_outer);
  const float mean = kCentred ? sum_row<N>(x, p.groups, 0, false, partial[0]) / p.size : 0;
  const float sum =
      p.factor == Factor::kGiven ? p.sums[row] : sum_row<N>(x, p.groups, mean, true, partial[1]);
  const RowFacts facts{.mean = mean, .factor = row_factor(p, sum)};
  for (int group = static_cast<int>(threadIdx.x); group < p.groups;
       group += static_cast<int>(blockDim.x)) {
    float value[N];
    load_lanes<N>(x + static_cast<int64_t>(group) * N, value);
    finish<false, N>(p, value, group, facts, {}, out);
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

constexpr int kMostHeld = 4;  // groups of a thread whose row stays in registers

template <bool kCentred, bool kTurned, int N, class In, class Out>
void run_typed(Stream& stream, Rows<In, Out> p) {
  const auto held = [&](auto kernel, int groups) {
    const Launch how = over_whole_rows(p.rows, p.groups, groups);
    p.same_pairs = p.groups_of_head.remainder(how.block.x) == 0;
    launch(stream, how, kernel, p);
  };
  // Rows of one warp or less need no barrier; few threads with several groups each have more loads
  // in flight.
  if constexpr (N > 1) {
    if (p.groups <= kWarp) return held(norm_held<kCentred, kTurned, In, Out, N, 1>, 1);
    if (p.groups <= 2 * kWarp || (p.groups > 4 * kWarp && p.groups <= 8 * kWarp))
      return held(norm_held<kCentred, kTurned, In, Out, N, 2>, 2);
  }
  if (kTurned || p.groups <= kMostHeld * kMaxThreads)
    return held(norm_held<kCentred, kTurned, In, Out, N, kMostHeld>, kMostHeld);
  launch(stream, {.grid = dim3(blocks_for(p.rows, 1)), .block = dim3(kMaxThreads)},
         norm_read_again<kCentred, In, Out, N>, p);
}

template <class In, class Out>
Rows<In, Out> make_rows(const TensorView& x, const TensorView& out) {
  CHECK(x[-1] <= std::numeric_limits<int>::max(), "x", x.to_string_shape());
  const auto size = static_cast<double>(x[-1]);
  CHECK(x.rows() < Divisor::kMost, "rows", x.to_string_shape());
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
          .in_heads = in_heads,
          .heads = in_heads ? Divisor(x[1]) : Divisor(),
          .x_outer = in_heads ? x.stride[0] : 0,
          .out_outer = in_heads ? out.stride[0] : 0,
          .groups = 0,
          .size = static_cast<float>(size),
          .width = static_cast<float>(size),
          .root = static_cast<float>(std::sqrt(size)),
          .eps = 0,
          .weight_offset = 0,
          .factor = Factor::kMeanSquare,
          .silu = false,
          .added = nullptr,
          .gate = nullptr,
          .added_stride = 0,
          .turns = {},
          .groups_of_head = {},
          .rows_of_token = {},
          .same_pairs = false};
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
    run_typed<kCentred, false, lanes>(stream, p);
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

// Rows that do not fit registers, and rows of y that are aligned otherwise than x, take two passes.
void gated_add_norm(Stream& stream, const TensorView& sum, const TensorView& y,
                    const TensorView& gate, const LayerNorm& norm, const TensorView& out) {
  constexpr int64_t kMostHeldValues = int64_t{kMostHeld} * kMaxThreads;
  const bool wide = wide_rows(sum, kF32Lanes) && wide_rows(out, kF32Lanes) &&
                    wide_rows(norm.weight, kF32Lanes) && wide_rows(norm.bias, kF32Lanes);
  const bool held = wide ? sum[-1] <= kF32Lanes * kMostHeldValues && wide_rows(y, kF32Lanes) &&
                               wide_rows(gate, kF32Lanes)
                         : sum[-1] <= kMostHeldValues;
  if (!held) gated_add(stream, sum, y, gate, sum);
  run<true>(stream, sum, norm.weight, norm.bias, out, [&](auto& p) {
    p.eps = norm.eps;
    p.weight_offset = norm.modulated ? 1 : 0;
    if (!held) return;
    p.added = y.as<float>();
    p.gate = gate.as<float>();
    p.added_stride = y.row_stride();
  });
}

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float eps,
              const TensorView& out) {
  run<false>(stream, x, weight, {}, out, [&](auto& p) { p.eps = eps; });
}

template <class T>
void run_turned(Stream& stream, const TensorView& x, const HeadNorm& norm, const Turns& turns,
                const TensorView& out) {
  constexpr int kLanes = sizeof(T) == 4 ? kF32Lanes : kBf16Lanes;
  const int64_t heads = x[1], size = x[2];
  const bool whole = norm.weight.count() != size;  // a row of all heads
  const auto rows = [&](const TensorView& of) { return whole ? head_rows(of) : of; };
  Rows<T, T> p = make_rows<T, T>(rows(x), rows(out));
  p.weight = norm.weight.as<float>();
  p.eps = norm.eps;
  p.groups = static_cast<int>(rows(x)[-1] / kLanes);
  p.turns = turns;
  p.groups_of_head = Divisor(size / kLanes);
  p.rows_of_token = Divisor(whole ? 1 : heads);
  run_typed<false, true, kLanes>(stream, p);
}

// Heads that are not aligned, and rows that do not fit registers, take two passes.
void rms_norm_rope(Stream& stream, const TensorView& x, const HeadNorm& norm, const Rope& rope,
                   int64_t first_token, const TensorView& out) {
  const bool whole = norm.weight.count() != x[2];
  const TensorView from = whole ? head_rows(x) : x, to = whole ? head_rows(out) : out;
  const int lanes = x.dtype == DType::kF32 ? kF32Lanes : kBf16Lanes;
  const bool fits = x[2] % lanes == 0 && wide_rows(from, lanes) && wide_rows(to, lanes) &&
                    wide_rows(norm.weight, lanes) &&
                    from[-1] <= int64_t{lanes} * kMostHeld * kMaxThreads;
  if (!fits) {
    weft::rms_norm(stream, from, norm.weight, norm.eps, to);
    return apply_rope(stream, out, rope, first_token, out);
  }
  visit_dtype(x.dtype, [&](auto tag) {
    run_turned<decltype(tag)>(stream, x, norm, turns_of(rope, first_token), out);
  });
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

}  // namespace

void fill_norm(Ops& ops) {
  NormOps& norm = ops.norm;
  norm.layer_norm = layer_norm;
  norm.modulated_layer_norm = modulated_layer_norm;
  norm.rms_norm = rms_norm;
  norm.sum_squares = sum_squares;
  norm.rms_scale = rms_scale;
  norm.channel_rms_norm = channel_rms_norm;
  ops.fused.gated_add_norm = gated_add_norm;
  ops.fused.rms_norm_rope = rms_norm_rope;
}

}  // namespace weft::cuda
