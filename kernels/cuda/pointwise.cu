// Pointwise ops: one pass, 16 bytes per access. They are compiled without contraction to fused
// multiply-add, so that multiplications and additions have the bits of the other tables.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/tables.h"
#include "kernels/pointwise.h"

namespace weft::cuda {

namespace {

// Each op says which inputs it reads besides x, and which operands may be f32 beside bf16.
struct Add {
  static constexpr bool kY = true, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float y, float) const { return x + y; }
};

struct GatedAdd {
  static constexpr bool kY = true, kVector = true, kWideX = false, kWideY = true;
  __device__ __forceinline__ float operator()(float x, float y, float v) const { return x + y * v; }
};

struct AddBias {
  static constexpr bool kY = false, kVector = true, kWideX = true, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float, float v) const { return x + v; }
};

// 0.5 (1 + tanh u) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu(float x) {
  constexpr float kFactor = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  return gate(x, x * (x * x * (0.044715f * kFactor) + kFactor));
}

struct Silu {
  static constexpr bool kY = false, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float, float) const { return gate(x, x); }
};

struct Tanh {
  static constexpr bool kY = false, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float, float) const { return tanhf(x); }
};

struct Gelu {
  static constexpr bool kY = false, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float, float) const { return gelu(x); }
};

// 1 + erf(u) = erfc(-u), which keeps its relative accuracy far left of zero.
struct GeluErf {
  static constexpr bool kY = false, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float, float) const {
    return 0.5f * x * erfcf(x * -0.70710678f);
  }
};

struct GeluQuick {
  static constexpr bool kY = false, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float, float) const {
    return gate(x, 1.702f * x);
  }
};

struct GeluMul {
  static constexpr bool kY = true, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float y, float) const { return gelu(x) * y; }
};

struct SiluMul {
  static constexpr bool kY = true, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float y, float) const {
    return gate(x, x) * y;
  }
};

struct SigmoidMul {
  static constexpr bool kY = true, kVector = false, kWideX = false, kWideY = false;
  __device__ __forceinline__ float operator()(float x, float y, float) const { return gate(y, x); }
};

struct Axpby {
  static constexpr bool kY = true, kVector = false, kWideX = false, kWideY = false;
  float a, b;
  __device__ __forceinline__ float operator()(float x, float y, float) const {
    return a * x + b * y;
  }
};

struct Clamp {
  static constexpr bool kY = false, kVector = false, kWideX = false, kWideY = false;
  float low, high;
  __device__ __forceinline__ float operator()(float x, float, float) const {
    return x < low ? low : high < x ? high : x;  // NaN stays
  }
};

// out[r][i] = op(x[r][i], y[r][i], vector[i]); strides in elements.
template <class X, class Y, class Out>
struct Rows {
  const X* x;
  const Y* y;
  const float* vector;
  Out* out;
  int64_t x_stride, y_stride, out_stride;
  int64_t rows, groups;  // of N elements
};

template <class Op, int N, class X, class Y, class Out>
__global__ void __launch_bounds__(256, 6) map_rows(Op op, Rows<X, Y, Out> p) {
  const int64_t group = column();
  if (group >= p.groups) return;
  const int64_t i = group * N;
  float x[N], y[N] = {}, v[N] = {};
  if constexpr (Op::kVector) load_lanes<N>(p.vector + i, v);
#pragma unroll 1  // otherwise its trip count takes a 64-bit division
  for (int64_t r = first_row(); r < p.rows; r += row_step()) {
    load_lanes<N>(p.x + r * p.x_stride + i, x);
    if constexpr (Op::kY) load_lanes<N>(p.y + r * p.y_stride + i, y);
#pragma unroll
    for (int lane = 0; lane < N; ++lane) x[lane] = op(x[lane], y[lane], v[lane]);
    store_lanes<N>(x, p.out + r * p.out_stride + i);
  }
}

// Returns the view as one long row if it is dense and columns do not matter.
TensorView as_one_row(const TensorView& x) {
  return x && x.contiguous() ? x.reshape({1, x.count()}) : x;
}

template <class Op, class X, class Y, class Out>
void map_typed(Stream& stream, const Op& op, TensorView x, TensorView y, const TensorView& vector,
               TensorView out) {
  if (!vector && x.contiguous() && out.contiguous() && (!y || y.contiguous())) {
    x = as_one_row(x);
    y = as_one_row(y);
    out = as_one_row(out);
  }
  constexpr bool kAllF32 = sizeof(X) == 4 && sizeof(Y) == 4 && sizeof(Out) == 4;
  constexpr int kLanes = kAllF32 ? kF32Lanes : kBf16Lanes;
  const bool wide = wide_rows(x, kLanes) && wide_rows(y, kLanes) && wide_rows(out, kLanes) &&
                    wide_rows(vector, kLanes);
  Rows<X, Y, Out> p{.x = x.as<X>(),
                    .y = y ? y.as<Y>() : nullptr,
                    .vector = vector ? vector.as<float>() : nullptr,
                    .out = out.as<Out>(),
                    .x_stride = x.row_stride(),
                    .y_stride = y ? y.row_stride() : 0,
                    .out_stride = out.row_stride(),
                    .rows = out.rows(),
                    .groups = wide ? out[-1] / kLanes : out[-1]};
  const Launch how = over_rows(stream, p.rows, p.groups);
  if (wide)
    launch(stream, how, map_rows<Op, kLanes, X, Y, Out>, op, p);
  else
    launch(stream, how, map_rows<Op, 1, X, Y, Out>, op, p);
}

template <class Op>
void map(Stream& stream, const Op& op, const TensorView& x, const TensorView& y,
         const TensorView& vector, const TensorView& out) {
  if (out.dtype == DType::kF32)
    return map_typed<Op, float, float, float>(stream, op, x, y, vector, out);
  if constexpr (Op::kWideX)
    if (x.dtype == DType::kF32)
      return map_typed<Op, float, bf16, bf16>(stream, op, x, y, vector, out);
  if constexpr (Op::kWideY)
    if (y.dtype == DType::kF32)
      return map_typed<Op, bf16, float, bf16>(stream, op, x, y, vector, out);
  map_typed<Op, bf16, bf16, bf16>(stream, op, x, y, vector, out);
}

void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  map(stream, Add{}, a, b, {}, out);
}

void gated_add(Stream& stream, const TensorView& x, const TensorView& y, const TensorView& gate,
               const TensorView& out) {
  map(stream, GatedAdd{}, x, y, gate, out);
}

void add_bias(Stream& stream, const TensorView& x, const TensorView& bias, const TensorView& out) {
  map(stream, AddBias{}, x, {}, bias, out);
}

void silu(Stream& stream, const TensorView& x, const TensorView& out) {
  map(stream, Silu{}, x, {}, {}, out);
}

void tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  map(stream, Tanh{}, x, {}, {}, out);
}

void gelu_tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  map(stream, Gelu{}, x, {}, {}, out);
}

void gelu_erf(Stream& stream, const TensorView& x, const TensorView& out) {
  map(stream, GeluErf{}, x, {}, {}, out);
}

void gelu_quick(Stream& stream, const TensorView& x, const TensorView& out) {
  map(stream, GeluQuick{}, x, {}, {}, out);
}

void gelu_tanh_mul(Stream& stream, const TensorView& a, const TensorView& b,
                   const TensorView& out) {
  map(stream, GeluMul{}, a, b, {}, out);
}

void silu_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  map(stream, SiluMul{}, a, b, {}, out);
}

void sigmoid_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  map(stream, SigmoidMul{}, a, b, {}, out);
}

void axpby(Stream& stream, float a, const TensorView& x, float b, const TensorView& y,
           const TensorView& out) {
  map(stream, Axpby{.a = a, .b = b}, x, y, {}, out);
}

void clamp(Stream& stream, const TensorView& x, float low, float high, const TensorView& out) {
  map(stream, Clamp{.low = low, .high = high}, x, {}, {}, out);
}

// Computes terms[i].factor * x[i], the first product first, and adds the others in order, in f64.
struct Terms {
  const float* x[kMaxTerms];
  double factor[kMaxTerms];
  int count;
};

template <int N>
__global__ void __launch_bounds__(256) sum_terms(Terms terms, float* out, int64_t groups) {
  const int64_t group = column();
  if (group >= groups || first_row() > 0) return;
  double sum[N];
  float x[N];
  load_lanes<N>(terms.x[0] + group * N, x);
#pragma unroll
  for (int lane = 0; lane < N; ++lane) sum[lane] = terms.factor[0] * x[lane];
#pragma unroll
  for (int k = 1; k < kMaxTerms; ++k) {
    if (k >= terms.count) continue;
    load_lanes<N>(terms.x[k] + group * N, x);
#pragma unroll
    for (int lane = 0; lane < N; ++lane) sum[lane] += terms.factor[k] * x[lane];
  }
#pragma unroll
  for (int lane = 0; lane < N; ++lane) x[lane] = static_cast<float>(sum[lane]);
  store_lanes<N>(x, out + group * N);
}

void combine(Stream& stream, std::span<const Term> terms, const TensorView& out) {
  Terms p{.x = {}, .factor = {}, .count = static_cast<int>(terms.size())};
  bool wide = aligned16(out.data) && out.count() % kF32Lanes == 0;
  for (size_t k = 0; k < terms.size(); ++k) {
    p.x[k] = terms[k].x.as<float>();
    p.factor[k] = terms[k].factor;
    wide = wide && aligned16(p.x[k]);
  }
  const int64_t groups = wide ? out.count() / kF32Lanes : out.count();
  launch(stream, over_rows(stream, 1, groups), wide ? sum_terms<kF32Lanes> : sum_terms<1>, p,
         out.as<float>(), groups);
}

// Sets slot to the minimum of itself and the index of x's first element whose exponent bits are all
// ones; as unsigned, -1 is the highest value.
template <class T, int N>
__global__ void __launch_bounds__(256)
    find_non_finite(const T* x, int64_t begin, int64_t groups, unsigned long long* slot) {
  constexpr uint32_t kExponent = 0x7f800000u;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t first = -1;
  for (int64_t group = column(); group < groups && first < 0; group += step) {
    float value[N];
    load_lanes<N>(x + begin + group * N, value);
#pragma unroll
    for (int lane = N - 1; lane >= 0; --lane)
      if ((std::bit_cast<uint32_t>(value[lane]) & kExponent) == kExponent)
        first = begin + group * N + lane;
  }
  if (first >= 0) atomicMin(slot, static_cast<unsigned long long>(first));
}

template <class T>
void find(Stream& stream, const TensorView& x, unsigned long long* slot) {
  constexpr int kLanes = sizeof(T) == 4 ? kF32Lanes : kBf16Lanes;
  constexpr int64_t kThreads = 256, kBlocksPerMultiprocessor = 32;
  const auto run = [&](auto kernel, int64_t begin, int64_t groups) {
    if (groups == 0) return;
    const int64_t most = kBlocksPerMultiprocessor * cuda_queue(stream).properties().multiprocessors;
    const int64_t blocks = std::min<int64_t>(blocks_for(groups, kThreads), most);
    launch(stream, {.grid = dim3(static_cast<unsigned>(blocks)), .block = dim3(kThreads)}, kernel,
           x.as<T>(), begin, groups, slot);
  };
  const int64_t count = x.count(), wide = aligned16(x.data) ? count / kLanes : 0;
  run(find_non_finite<T, kLanes>, 0, wide);
  run(find_non_finite<T, 1>, wide * kLanes, count - wide * kLanes);
}

void note(Stream& stream, const TensorView& x, void* slot) {
  visit_dtype(x.dtype, [&](auto tag) {
    find<decltype(tag)>(stream, x, static_cast<unsigned long long*>(slot));
  });
}

void note_non_finite(Stream& stream, const TensorView& x, const TensorView& slot) {
  note(stream, x, slot.data);
}

int64_t first_non_finite(Stream& stream, const TensorView& x) {
  CudaQueue& queue = cuda_queue(stream);
  int64_t first = -1;
  void* slot = queue.scratch(sizeof(first));
  WEFT_CUDA_CHECK(cudaMemsetAsync(slot, 0xff, sizeof(first), queue.stream()));
  note(stream, x, slot);
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(&first, slot, sizeof(first), cudaMemcpyDeviceToHost, queue.stream()));
  queue.sync();
  return first;
}

}  // namespace

void fill_pointwise(Ops& ops) {
  ops.pointwise.add = add;
  ops.pointwise.gated_add = gated_add;
  ops.pointwise.add_bias = add_bias;
  ops.pointwise.silu = silu;
  ops.pointwise.tanh = tanh;
  ops.pointwise.gelu_tanh = gelu_tanh;
  ops.pointwise.gelu_erf = gelu_erf;
  ops.pointwise.gelu_quick = gelu_quick;
  ops.pointwise.gelu_tanh_mul = gelu_tanh_mul;
  ops.pointwise.silu_mul = silu_mul;
  ops.pointwise.sigmoid_mul = sigmoid_mul;
  ops.pointwise.axpby = axpby;
  ops.pointwise.combine = combine;
  ops.pointwise.clamp = clamp;
  ops.pointwise.first_non_finite = first_non_finite;
  ops.pointwise.note_non_finite = note_non_finite;
}

}  // namespace weft::cuda
