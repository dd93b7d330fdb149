// Pointwise ops with Highway. Multiplication and addition are separate operations, so that add,
// gated_add, add_bias and axpby give the bits of the reference on every target.
#include <atomic>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"
#include "kernels/pointwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pointwise_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/rows-inl.h"

#ifndef WEFT_KERNELS_CPU_POINTWISE_SIMD_ONCE
#define WEFT_KERNELS_CPU_POINTWISE_SIMD_ONCE
namespace weft::cpu {

// The arguments of one call: out[r][i] = f(x[r][i], y[r][i], vector[i]).
struct Map {
  enum class Kind {
    kAdd,
    kGatedAdd,
    kAddBias,
    kSilu,
    kGelu,
    kGeluErf,
    kGeluQuick,
    kGeluMul,
    kSiluMul,
    kSigmoidMul,
    kAxpby
  } kind;
  TensorView x, y, out;  // y is empty if f takes one tensor
  const float* vector = nullptr;
  float a = 0, b = 0;
};

}  // namespace weft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// Says which inputs an op reads besides x.
enum Reads { kOnlyX, kY, kVector, kYAndVector };

struct Add {
  static constexpr Reads kReads = kY;
  explicit Add(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec y, RowVec) const { return hn::Add(x, y); }
};

struct GatedAdd {
  static constexpr Reads kReads = kYAndVector;
  explicit GatedAdd(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec y, RowVec v) const {
    return hn::Add(x, hn::Mul(y, v));
  }
};

struct AddBias {
  static constexpr Reads kReads = kVector;
  explicit AddBias(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec, RowVec v) const { return hn::Add(x, v); }
};

struct Silu {
  static constexpr Reads kReads = kOnlyX;
  explicit Silu(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec, RowVec) const { return silu(x); }
};

struct Gelu {
  static constexpr Reads kReads = kOnlyX;
  explicit Gelu(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec, RowVec) const { return gelu_tanh(x); }
};

struct GeluErf {
  static constexpr Reads kReads = kOnlyX;
  explicit GeluErf(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec, RowVec) const { return gelu_erf(x); }
};

struct GeluQuick {
  static constexpr Reads kReads = kOnlyX;
  explicit GeluQuick(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec, RowVec) const {
    return gate(x, hn::Mul(x, hn::Set(RowTag(), 1.702f)));
  }
};

struct GeluMul {
  static constexpr Reads kReads = kY;
  explicit GeluMul(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec y, RowVec) const {
    return hn::Mul(gelu_tanh(x), y);
  }
};

struct SiluMul {
  static constexpr Reads kReads = kY;
  explicit SiluMul(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec y, RowVec) const { return hn::Mul(silu(x), y); }
};

struct SigmoidMul {
  static constexpr Reads kReads = kY;
  explicit SigmoidMul(const Map&) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec y, RowVec) const { return gate(y, x); }
};

struct Axpby {
  static constexpr Reads kReads = kY;
  float a, b;
  explicit Axpby(const Map& map) : a(map.a), b(map.b) {}
  HWY_INLINE RowVec operator()(RowVec x, RowVec y, RowVec) const {
    const RowTag d;
    return hn::Add(hn::Mul(hn::Set(d, a), x), hn::Mul(hn::Set(d, b), y));
  }
};

template <class Op, class X, class Y, class Out>
HWY_INLINE void map_row(const Op& op, const X* x, const Y* y, const float* v, Out* out, int64_t n) {
  constexpr bool kReadsY = Op::kReads == kY || Op::kReads == kYAndVector;
  constexpr bool kReadsVector = Op::kReads == kVector || Op::kReads == kYAndVector;
  const int64_t lanes = row_lanes();
  const RowVec zero = hn::Zero(RowTag());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    RowVec second = zero, third = zero;
    if constexpr (kReadsY) second = load(y + i);
    if constexpr (kReadsVector) third = load(v + i);
    store(op(load(x + i), second, third), out + i);
  }
  if (i == n) return;
  RowVec second = zero, third = zero;
  if constexpr (kReadsY) second = load_part(y + i, n - i);
  if constexpr (kReadsVector) third = load_part(v + i, n - i);
  store_part(op(load_part(x + i, n - i), second, third), out + i, n - i);
}

template <class Op, class X, class Y, class Out>
void map_typed(const Map& map, int64_t begin, int64_t end) {
  const Op op(map);
  const X* x = static_cast<const X*>(map.x.data);
  const Y* y = static_cast<const Y*>(map.y.data);
  Out* out = static_cast<Out*>(map.out.data);
  const int64_t x_stride = map.x.row_stride(), stride = map.out.row_stride();
  const int64_t y_stride = y ? map.y.row_stride() : 0, d = map.out[-1];
  const bool dense = x_stride == d && stride == d && (!y || y_stride == d);
  if (dense && !map.vector) {  // one long row has one tail
    map_row(op, x + begin * d, y + begin * y_stride, nullptr, out + begin * d, (end - begin) * d);
    return;
  }
  for (int64_t r = begin; r < end; ++r)
    map_row(op, x + r * x_stride, y + r * y_stride, map.vector, out + r * stride, d);
}

// Dispatches over the dtypes that the family allows: all f32, all bf16, and f32 y or f32 x where
// the header allows it.
template <class Op>
void map_op(const Map& map, int64_t begin, int64_t end) {
  const bool wide_y = map.y && map.y.dtype == DType::kF32;
  if (map.out.dtype == DType::kF32)
    map_typed<Op, float, float, float>(map, begin, end);
  else if (map.x.dtype == DType::kF32)
    map_typed<Op, float, float, bf16>(map, begin, end);
  else if (wide_y)
    map_typed<Op, bf16, float, bf16>(map, begin, end);
  else
    map_typed<Op, bf16, bf16, bf16>(map, begin, end);
}

void run_map(const Map& map, int64_t begin, int64_t end) {
  switch (map.kind) {
    case Map::Kind::kAdd:
      return map_op<Add>(map, begin, end);
    case Map::Kind::kGatedAdd:
      return map_op<GatedAdd>(map, begin, end);
    case Map::Kind::kAddBias:
      return map_op<AddBias>(map, begin, end);
    case Map::Kind::kSilu:
      return map_op<Silu>(map, begin, end);
    case Map::Kind::kGelu:
      return map_op<Gelu>(map, begin, end);
    case Map::Kind::kGeluErf:
      return map_op<GeluErf>(map, begin, end);
    case Map::Kind::kGeluQuick:
      return map_op<GeluQuick>(map, begin, end);
    case Map::Kind::kGeluMul:
      return map_op<GeluMul>(map, begin, end);
    case Map::Kind::kSiluMul:
      return map_op<SiluMul>(map, begin, end);
    case Map::Kind::kSigmoidMul:
      return map_op<SigmoidMul>(map, begin, end);
    case Map::Kind::kAxpby:
      return map_op<Axpby>(map, begin, end);
  }
}

// Returns the first non-finite element of [begin, end), or -1. Its exponent bits are all ones; a
// bf16 has the exponent of the f32 it widens to.
template <class T>
int64_t find_non_finite(const T* x, int64_t begin, int64_t end) {
  const hn::RebindToUnsigned<RowTag> d32;
  const auto exponent = hn::Set(d32, 0x7f800000u);
  const int64_t lanes = row_lanes();
  for (int64_t i = begin; i < end; i += lanes) {
    const RowVec value = i + lanes <= end ? load(x + i) : load_part(x + i, end - i);
    const auto bits = hn::And(hn::BitCast(d32, value), exponent);
    const intptr_t first = hn::FindFirstTrue(d32, hn::Eq(bits, exponent));
    if (first >= 0) return i + first;
  }
  return -1;
}

int64_t find_range(const TensorView& x, int64_t begin, int64_t end) {
  return x.dtype == DType::kF32 ? find_non_finite(x.as<float>(), begin, end)
                                : find_non_finite(x.as<bf16>(), begin, end);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(run_map);
HWY_EXPORT(find_range);

namespace {

void run(Stream& stream, const Map& map) {
  parallel_for(stream, map.out.rows(), row_grain(map.out[-1]), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(run_map)(map, begin, end);
  });
}

void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kAdd, .x = a, .y = b, .out = out});
}

void gated_add(Stream& stream, const TensorView& x, const TensorView& y, const TensorView& gate,
               const TensorView& out) {
  run(stream,
      {.kind = Map::Kind::kGatedAdd, .x = x, .y = y, .out = out, .vector = gate.as<float>()});
}

void add_bias(Stream& stream, const TensorView& x, const TensorView& bias, const TensorView& out) {
  run(stream,
      {.kind = Map::Kind::kAddBias, .x = x, .y = {}, .out = out, .vector = bias.as<float>()});
}

void silu(Stream& stream, const TensorView& x, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kSilu, .x = x, .y = {}, .out = out});
}

void gelu_tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kGelu, .x = x, .y = {}, .out = out});
}

void gelu_erf(Stream& stream, const TensorView& x, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kGeluErf, .x = x, .y = {}, .out = out});
}

void gelu_quick(Stream& stream, const TensorView& x, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kGeluQuick, .x = x, .y = {}, .out = out});
}

void gelu_tanh_mul(Stream& stream, const TensorView& a, const TensorView& b,
                   const TensorView& out) {
  run(stream, {.kind = Map::Kind::kGeluMul, .x = a, .y = b, .out = out});
}

void silu_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kSiluMul, .x = a, .y = b, .out = out});
}

void sigmoid_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  run(stream, {.kind = Map::Kind::kSigmoidMul, .x = a, .y = b, .out = out});
}

void axpby(Stream& stream, float a, const TensorView& x, float b, const TensorView& y,
           const TensorView& out) {
  run(stream, {.kind = Map::Kind::kAxpby, .x = x, .y = y, .out = out, .a = a, .b = b});
}

int64_t first_non_finite(Stream& stream, const TensorView& x) {
  const int64_t n = x.count();
  std::atomic<int64_t> first{n};
  parallel_for(stream, n, row_grain(1), [&](int64_t begin, int64_t end) {
    const int64_t found = HWY_DYNAMIC_DISPATCH(find_range)(x, begin, end);
    int64_t before = first;
    while (found >= 0 && found < before && !first.compare_exchange_weak(before, found)) {
    }
  });
  return first < n ? first.load() : -1;
}

}  // namespace

void fill_pointwise_simd(Ops& ops) {
  ops.pointwise.add = add;
  ops.pointwise.gated_add = gated_add;
  ops.pointwise.add_bias = add_bias;
  ops.pointwise.silu = silu;
  ops.pointwise.gelu_tanh = gelu_tanh;
  ops.pointwise.gelu_erf = gelu_erf;
  ops.pointwise.gelu_quick = gelu_quick;
  ops.pointwise.gelu_tanh_mul = gelu_tanh_mul;
  ops.pointwise.silu_mul = silu_mul;
  ops.pointwise.sigmoid_mul = sigmoid_mul;
  ops.pointwise.axpby = axpby;
  ops.pointwise.first_non_finite = first_non_finite;
}

}  // namespace weft::cpu
#endif
