// Reference of 8-bit products.
#include "kernels/cpu/linear_int8.h"

#include <cmath>
#include <vector>

#include "kernels/copy.h"
#include "kernels/cpu/linear_fp8.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"

namespace weft::cpu {

float quantize_row_reference(const float* x, int64_t count, int8_t* out) {
  float most = 0, poison = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::fmax(most, std::fabs(x[i]));
    poison += x[i] * 0;  // NaN where x is not finite
  }
  const bool finite = poison == 0;
  const float to_unit = most > 0 && finite ? 127 / most : 0;
  for (int64_t i = 0; i < count; ++i)
    out[i] = finite ? static_cast<int8_t>(std::nearbyint(x[i] * to_unit)) : int8_t{0};
  return most / 127 + poison;
}

EightBitWeights quantize_weights(Stream& stream, const TensorView& weight, const TensorView& bias,
                                 DType dtype, WeightFormat format, PackedLinear& packed) {
  const int64_t out = weight[0], in = weight[1];
  packed.out_ = out;
  packed.in_ = in;
  packed.dtype_ = dtype;
  packed.format_ = format;
  const bool whole = format == WeightFormat::kInt8;
  EightBitWeights weights{Tensor(whole ? DType::kI8 : DType::kF8E4M3, {out, in}),
                          Tensor(DType::kF32, {out})};
  constexpr int64_t kRows = 64;  // converted at a time
  const Tensor wide(DType::kF32, {std::min(kRows, out), in});
  for (int64_t row = 0; row < out; row += kRows) {
    const int64_t count = std::min(kRows, out - row);
    copy(stream, weight.slice(0, row, count), wide.view().slice(0, 0, count));
    parallel_for(stream, count, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* from = wide.as<float>() + r * in;
        void* to = static_cast<int8_t*>(weights.values.view().data) + (row + r) * in;
        weights.scales.as<float>()[row + r] =
            whole ? quantize_row_reference(from, in, static_cast<int8_t*>(to))
                  : quantize_row_e4m3(from, in, static_cast<uint8_t*>(to));
      }
    });
  }
  if (bias) {
    packed.bias_ = Tensor(DType::kF32, bias.shape());
    copy(stream, bias, packed.bias_);
  }
  packed.bytes_ = weights.values.view().bytes() + weights.scales.view().bytes() +
                  (packed.bias_ ? packed.bias_.view().bytes() : 0);
  return weights;
}

PackedLinear pack_linear_int8(Stream& stream, const TensorView& weight, const TensorView& bias,
                              DType dtype) {
  PackedLinear packed;
  auto* stored = new EightBitWeights(
      quantize_weights(stream, weight, bias, dtype, WeightFormat::kInt8, packed));
  packed.storage_ = {stored, [](void* data) { delete static_cast<EightBitWeights*>(data); }};
  return packed;
}

void linear_int8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                 LinearActivation activation, const TensorView& out) {
  const auto& weights = *static_cast<const EightBitWeights*>(packed.storage_.get());
  const int64_t in = packed.in(), columns = packed.out();
  const auto* values = static_cast<const int8_t*>(weights.values.view().data);
  const float* bias = packed.has_bias() ? packed.bias_.as<float>() : nullptr;
  const auto run = [&](auto tag, auto out_tag, int64_t begin, int64_t end) {
    using T = decltype(tag);
    using Out = decltype(out_tag);
    std::vector<float> row(in);
    std::vector<int8_t> numbers(in);
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < in; ++i) row[i] = to_float(x.as<T>()[r * x.row_stride() + i]);
      const float scale = quantize_row_reference(row.data(), in, numbers.data());
      for (int64_t o = 0; o < columns; ++o) {
        int32_t sum = 0;
        for (int64_t i = 0; i < in; ++i) sum += int32_t{numbers[i]} * int32_t{values[o * in + i]};
        const float product = static_cast<float>(sum) * (scale * weights.scales.as<float>()[o]);
        out.as<Out>()[r * out.row_stride() + o] = from_float<Out>(
            static_cast<float>(activate_exact(product + (bias ? bias[o] : 0.0f), activation)));
      }
    }
  };
  parallel_for(stream, x.rows(), row_grain(in * columns), [&](int64_t begin, int64_t end) {
    visit_dtype(x.dtype, [&](auto tag) {
      visit_dtype(out.dtype, [&](auto out_tag) { run(tag, out_tag, begin, end); });
    });
  });
}

}  // namespace weft::cpu
