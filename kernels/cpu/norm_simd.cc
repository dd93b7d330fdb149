// Norms with Highway: first the mean, then the sum of squared differences (two passes do not
// cancel), then the outputs. A row stays in L1 or L2 between the passes.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tables.h"
#include "kernels/norm.h"
#include "kernels/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/rows-inl.h"

#ifndef WEFT_KERNELS_CPU_NORM_SIMD_ONCE
#define WEFT_KERNELS_CPU_NORM_SIMD_ONCE
namespace weft::cpu {

// The arguments of one call over rows.
struct NormCall {
  enum class Kind { kLayer, kModulated, kRms, kSquares, kScale, kChannel, kGroup } kind;
  TensorView x, out;
  const float* weight = nullptr;  // null: 1; kModulated: 1 + weight
  const float* bias = nullptr;    // null: 0
  float* sums = nullptr;          // kSquares writes, kScale reads
  int64_t width = 0;
  float eps = 0;
  Activation activation = Activation::kNone;
};

// The arguments of the sums over a block of rows: totals[c] += sum of x[., c], or of the squared
// differences from means[c].
struct ColumnSums {
  TensorView x;
  const float* means = nullptr;  // null: plain sums
};

}  // namespace weft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// Returns the sum over i of term(x[i]). Four partial sums hide the latency of an addition. term
// gets zeros after the end; its values there are dropped.
template <class T, class Term>
HWY_INLINE float sum_terms(const T* x, int64_t n, const Term& term) {
  const RowTag d;
  const int64_t lanes = row_lanes();
  RowVec s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, term(load(x + i)));
    s1 = hn::Add(s1, term(load(x + i + lanes)));
    s2 = hn::Add(s2, term(load(x + i + 2 * lanes)));
    s3 = hn::Add(s3, term(load(x + i + 3 * lanes)));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, term(load(x + i)));
  if (i < n) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(n - i));
    s1 = hn::Add(s1, hn::IfThenElseZero(mask, term(load_part(x + i, n - i))));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

struct Identity {
  HWY_INLINE RowVec operator()(RowVec x) const { return x; }
};

struct Square {
  HWY_INLINE RowVec operator()(RowVec x) const { return hn::Mul(x, x); }
};

struct SquaredDifference {
  RowVec mean;
  HWY_INLINE RowVec operator()(RowVec x) const {
    const RowVec difference = hn::Sub(x, mean);
    return hn::Mul(difference, difference);
  }
};

template <NormCall::Kind kKind>
struct Finish {
  RowVec mean, scale;
  bool has_weight, has_bias, with_silu;

  HWY_INLINE RowVec operator()(RowVec x, RowVec weight, RowVec bias) const {
    constexpr bool kCentred =
        kKind == NormCall::Kind::kLayer || kKind == NormCall::Kind::kModulated;
    RowVec y = hn::Mul(kCentred ? hn::Sub(x, mean) : x, scale);
    if (kKind == NormCall::Kind::kModulated) weight = hn::Add(weight, hn::Set(RowTag(), 1.0f));
    if (has_weight) y = hn::Mul(y, weight);
    if (has_bias) y = hn::Add(y, bias);
    if ((kKind == NormCall::Kind::kChannel || kKind == NormCall::Kind::kGroup) && with_silu)
      y = silu(y);
    return y;
  }
};

template <NormCall::Kind kKind, class In, class Out>
HWY_INLINE void finish_row(const NormCall& call, float mean, float scale, const In* x, Out* out,
                           int64_t n) {
  const RowTag d;
  const int64_t lanes = row_lanes();
  const Finish<kKind> finish{hn::Set(d, mean), hn::Set(d, scale), call.weight != nullptr,
                             call.bias != nullptr, call.activation == Activation::kSilu};
  const RowVec zero = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    store(finish(load(x + i), call.weight ? load(call.weight + i) : zero,
                 call.bias ? load(call.bias + i) : zero),
          out + i);
  if (i < n)
    store_part(
        finish(load_part(x + i, n - i), call.weight ? load_part(call.weight + i, n - i) : zero,
               call.bias ? load_part(call.bias + i, n - i) : zero),
        out + i, n - i);
}

template <NormCall::Kind kKind, class In, class Out = In>
void norm_rows(const NormCall& call, int64_t begin, int64_t end) {
  using Kind = NormCall::Kind;
  const int64_t n = call.x[-1], x_stride = call.x.row_stride();
  const int64_t stride = kKind == Kind::kSquares ? 0 : call.out.row_stride();
  for (int64_t r = begin; r < end; ++r) {
    const In* x = call.x.as<In>() + r * x_stride;
    Out* out = kKind == Kind::kSquares ? nullptr : call.out.as<Out>() + r * stride;
    float mean = 0;
    double scale = 0;
    if constexpr (kKind == Kind::kSquares) {
      call.sums[r] = sum_terms(x, n, Square());
      continue;
    } else if constexpr (kKind == Kind::kLayer || kKind == Kind::kModulated) {
      mean = sum_terms(x, n, Identity()) / static_cast<float>(n);
      const SquaredDifference term{hn::Set(RowTag(), mean)};
      scale = 1 / std::sqrt(double{sum_terms(x, n, term)} / n + call.eps);
    } else if constexpr (kKind == Kind::kRms) {
      scale = 1 / std::sqrt(double{sum_terms(x, n, Square())} / n + call.eps);
    } else if constexpr (kKind == Kind::kScale) {
      scale = 1 / std::sqrt(double{call.sums[r]} / call.width + call.eps);
    } else if constexpr (kKind == Kind::kGroup) {
      scale = 1;  // weight and bias hold the whole formula
    } else {
      const double norm = std::sqrt(double{sum_terms(x, n, Square())});
      scale = std::sqrt(static_cast<double>(n)) / std::max(norm, 1e-12);
    }
    finish_row<kKind>(call, mean, static_cast<float>(scale), x, out, n);
  }
}

template <NormCall::Kind kKind>
void norm_kind(const NormCall& call, int64_t begin, int64_t end) {
  using Kind = NormCall::Kind;
  if constexpr (kKind == Kind::kLayer || kKind == Kind::kModulated || kKind == Kind::kRms)
    if (call.x.dtype != call.out.dtype) return norm_rows<kKind, float, bf16>(call, begin, end);
  if (call.x.dtype == DType::kF32)
    norm_rows<kKind, float>(call, begin, end);
  else
    norm_rows<kKind, bf16>(call, begin, end);
}

void run_norm(const NormCall& call, int64_t begin, int64_t end) {
  using Kind = NormCall::Kind;
  switch (call.kind) {
    case Kind::kLayer:
      return norm_kind<Kind::kLayer>(call, begin, end);
    case Kind::kModulated:
      return norm_kind<Kind::kModulated>(call, begin, end);
    case Kind::kRms:
      return norm_kind<Kind::kRms>(call, begin, end);
    case Kind::kSquares:
      return norm_kind<Kind::kSquares>(call, begin, end);
    case Kind::kScale:
      return norm_kind<Kind::kScale>(call, begin, end);
    case Kind::kChannel:
      return norm_kind<Kind::kChannel>(call, begin, end);
    case Kind::kGroup:
      return norm_kind<Kind::kGroup>(call, begin, end);
  }
}

// Few rows are added in f32 at a time, and their sums in f64.
constexpr int64_t kRowsInF32 = 32;

template <class T>
void sum_columns_typed(const ColumnSums& call, int64_t begin, int64_t end, double* totals) {
  const RowTag d;
  const int64_t lanes = row_lanes(), stride = call.x.row_stride(), width = call.x[1];
  const auto add_columns = [&](int64_t row, int64_t rows, int64_t c, int64_t n) {
    const bool whole = n == lanes;
    const T* x = call.x.as<T>() + row * stride + c;
    RowVec mean = hn::Zero(d), sum = hn::Zero(d);
    if (call.means) mean = whole ? load(call.means + c) : load_part(call.means + c, n);
    for (int64_t r = 0; r < rows; ++r, x += stride) {
      const RowVec value = whole ? load(x) : load_part(x, n);
      sum = hn::Add(sum, call.means ? SquaredDifference{mean}(value) : value);
    }
    float sums[16];
    store(sum, sums);
    for (int64_t i = 0; i < n; ++i) totals[c + i] += sums[i];
  };
  for (int64_t row = begin; row < end; row += kRowsInF32)
    for (int64_t c = 0; c < width; c += lanes)
      add_columns(row, std::min(kRowsInF32, end - row), c, std::min(lanes, width - c));
}

void sum_columns(const ColumnSums& call, int64_t begin, int64_t end, double* totals) {
  if (call.x.dtype == DType::kF32)
    sum_columns_typed<float>(call, begin, end, totals);
  else
    sum_columns_typed<bf16>(call, begin, end, totals);
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(run_norm);
HWY_EXPORT(sum_columns);

namespace {

void run(Stream& stream, const NormCall& call) {
  parallel_for(stream, call.x.rows(), row_grain(call.x[-1]), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(run_norm)(call, begin, end);
  });
}

const float* optional(const TensorView& vector) { return vector ? vector.as<float>() : nullptr; }

void layer_norm(Stream& stream, const TensorView& x, const TensorView& weight,
                const TensorView& bias, float eps, const TensorView& out) {
  run(stream, {.kind = NormCall::Kind::kLayer,
               .x = x,
               .out = out,
               .weight = optional(weight),
               .bias = optional(bias),
               .eps = eps});
}

void modulated_layer_norm(Stream& stream, const TensorView& x, const TensorView& scale,
                          const TensorView& shift, float eps, const TensorView& out) {
  run(stream, {.kind = NormCall::Kind::kModulated,
               .x = x,
               .out = out,
               .weight = scale.as<float>(),
               .bias = shift.as<float>(),
               .eps = eps});
}

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float eps,
              const TensorView& out) {
  if (!x.rows_collapse() || !out.rows_collapse()) {
    for (int64_t i = 0; i < x[0]; ++i)
      cpu::rms_norm(stream, x.select(0, i), weight, eps, out.select(0, i));
    return;
  }
  run(stream,
      {.kind = NormCall::Kind::kRms, .x = x, .out = out, .weight = weight.as<float>(), .eps = eps});
}

void sum_squares(Stream& stream, const TensorView& x, const TensorView& sums) {
  run(stream, {.kind = NormCall::Kind::kSquares, .x = x, .out = {}, .sums = sums.as<float>()});
}

void rms_scale(Stream& stream, const TensorView& x, const TensorView& sums, int64_t width,
               const TensorView& weight, float eps, const TensorView& out) {
  run(stream, {.kind = NormCall::Kind::kScale,
               .x = x,
               .out = out,
               .weight = weight.as<float>(),
               .sums = sums.as<float>(),
               .width = width,
               .eps = eps});
}

void channel_rms_norm(Stream& stream, const TensorView& x, const TensorView& gamma,
                      Activation activation, const TensorView& out) {
  run(stream, {.kind = NormCall::Kind::kChannel,
               .x = x,
               .out = out,
               .weight = gamma.as<float>(),
               .activation = activation});
}

// Writes the groups' totals to `out`. Blocks of rows are summed apart and joined in their order, so
// the result does not depend on the number of threads.
void sum_groups(Stream& stream, const ColumnSums& call, int64_t groups, float* out) {
  constexpr int64_t kBlocks = 64, kLeastRows = 64;
  const int64_t n = call.x[0], width = call.x[1], channels = width / groups;
  const int64_t rows = std::max(kLeastRows, (n + kBlocks - 1) / kBlocks);
  const int64_t blocks = (n + rows - 1) / rows;
  double* totals = thread_scratch<double>(Scratch::kSums, blocks * width);
  std::fill_n(totals, blocks * width, 0.0);
  parallel_for(stream, blocks, row_grain(rows * width), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) HWY_DYNAMIC_DISPATCH(sum_columns)
    (call, b * rows, std::min(n, (b + 1) * rows), totals + b * width);
  });
  for (int64_t g = 0; g < groups; ++g) {
    double total = 0;
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t c = g * channels; c < (g + 1) * channels; ++c) total += totals[b * width + c];
    out[g] = static_cast<float>(total);
  }
}

void group_sums(Stream& stream, const TensorView& x, const TensorView& sums) {
  const int64_t groups = sums[0] - 1;
  sum_groups(stream, {.x = x}, groups, sums.as<float>());
  sums.as<float>()[groups] = static_cast<float>(x[0]);
}

void group_squares(Stream& stream, const TensorView& x, const TensorView& sums,
                   const TensorView& squares) {
  const int64_t groups = squares[0], channels = x[1] / groups;
  const float* sum = sums.as<float>();
  const double count = double{sum[groups]} * static_cast<double>(channels);
  float* means = thread_scratch<float>(Scratch::kRowTerms, x[1]);
  for (int64_t c = 0; c < x[1]; ++c) means[c] = static_cast<float>(sum[c / channels] / count);
  sum_groups(stream, {.x = x, .means = means}, groups, squares.as<float>());
}

void group_norm(Stream& stream, const TensorView& x, const TensorView& sums,
                const TensorView& squares, const TensorView& weight, const TensorView& bias,
                float eps, Activation activation, const TensorView& out) {
  const int64_t groups = squares[0], channels = x[1] / groups;
  const float* sum = sums.as<float>();
  const double count = double{sum[groups]} * static_cast<double>(channels);
  float* scales = thread_scratch<float>(Scratch::kRowTerms, 2 * x[1]);
  float* offsets = scales + x[1];
  for (int64_t c = 0; c < x[1]; ++c) {
    const int64_t g = c / channels;
    const double scale = weight.as<float>()[c] / std::sqrt(squares.as<float>()[g] / count + eps);
    scales[c] = static_cast<float>(scale);
    offsets[c] = static_cast<float>(bias.as<float>()[c] - sum[g] / count * scale);
  }
  run(stream, {.kind = NormCall::Kind::kGroup,
               .x = x,
               .out = out,
               .weight = scales,
               .bias = offsets,
               .activation = activation});
}

}  // namespace

void fill_norm_simd(Ops& ops) {
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

}  // namespace weft::cpu
#endif
