// Reference linear: the weights in their own layout, rounded to the compute dtype, and f64 sums.
#include "kernels/linear.h"

#include <vector>

#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_stored.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format) {
  if (format != WeightFormat::kCompute)
    return pack_linear_8bit(stream, weight, bias, dtype, format);
  PackedLinear packed(weight, dtype);
  Tensor& stored = packed.make_storage<PlainWeights>().weight;
  stored = Tensor(dtype, weight.shape(), stream.device());
  copy(stream, weight, stored);
  packed.set_bias(stream, bias);
  return packed;
}

// This many output columns are computed together: the chains are independent, and x is read once
// for all of them.
constexpr int64_t kColumns = 4;

struct Range {
  int64_t begin, end;
};

template <class T, class Out>
void linear_rows(const TensorView& x, const T* weight, const float* bias,
                 LinearActivation activation, const TensorView& out, Range rows) {
  const int64_t in = x[-1], columns = out[-1];
  const int64_t x_stride = x.row_stride(), out_stride = out.row_stride();
  std::vector<double> wide(in * kColumns);  // [in, kColumns]
  for (int64_t o = 0; o < columns; o += kColumns) {
    const int64_t width = std::min(kColumns, columns - o);
    for (int64_t k = 0; k < in; ++k)
      for (int64_t c = 0; c < kColumns; ++c)
        wide[k * kColumns + c] = c < width ? to_float(weight[(o + c) * in + k]) : 0.0f;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const T* row = x.as<T>() + r * x_stride;
      double sum[kColumns] = {};
      for (int64_t k = 0; k < in; ++k) {
        const double value = to_float(row[k]);
        for (int64_t c = 0; c < kColumns; ++c) sum[c] += value * wide[k * kColumns + c];
      }
      for (int64_t c = 0; c < width; ++c) {
        const double biased = sum[c] + (bias ? bias[o + c] : 0.0f);
        out.as<Out>()[r * out_stride + o + c] =
            from_float<Out>(static_cast<float>(activate_exact(biased, activation)));
      }
    }
  }
}

void linear_plain(Stream& stream, const TensorView& x, const PackedLinear& packed,
                  const void* weight, LinearActivation activation, const TensorView& out) {
  visit_dtype(x.dtype, [&](auto tag) {
    visit_dtype(out.dtype, [&](auto out_tag) {
      using T = decltype(tag);
      using Out = decltype(out_tag);
      parallel_for(stream, x.rows(), row_grain(packed.in() * packed.out()),
                   [&](int64_t begin, int64_t end) {
                     linear_rows<T, Out>(x, static_cast<const T*>(weight), packed.bias(),
                                         activation, out, {begin, end});
                   });
    });
  });
}

void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out) {
  const auto with = [&](const void* weight) {
    linear_plain(stream, x, packed, weight, activation, out);
  };
  if (packed.format() == WeightFormat::kFile)
    return packed.storage<StoredWeights>().with_values(stream, packed.dtype(), with);
  if (packed.format() != WeightFormat::kCompute)
    return linear_8bit(stream, x, packed, activation, out);
  with(packed.storage<PlainWeights>().weight.view().data);
}

}  // namespace

void fill_linear_reference(Ops& ops) {
  ops.linear = {.pack_linear = pack_linear,
                .pack_stored = pack_stored_as<ExpandedLayout::kRows>,
                .linear = linear};
}

}  // namespace weft::cpu
