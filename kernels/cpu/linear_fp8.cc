#include "kernels/cpu/linear_fp8.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/fp8.h"

namespace weft::cpu {

float quantize_row_e4m3(const float* x, int64_t count, uint8_t* out) {
  float most = 0, poison = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::fmax(most, std::fabs(x[i]));
    poison += x[i] * 0;  // NaN where x is not finite
  }
  const bool finite = poison == 0;
  const float unit = finite ? e4m3_unit(most) : 0;
  for (int64_t i = 0; i < count; ++i) out[i] = finite ? to_e4m3(x[i] * unit) : uint8_t{0};
  return most / kLargestE4m3 + poison;
}

PackedLinear pack_linear_fp8(Stream& stream, const TensorView& weight, const TensorView& bias,
                             DType dtype) {
  PackedLinear packed;
  auto* stored = new EightBitWeights(
      quantize_weights(stream, weight, bias, dtype, WeightFormat::kFp8, packed));
  packed.storage_ = {stored, [](void* data) { delete static_cast<EightBitWeights*>(data); }};
  return packed;
}

void linear_fp8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                LinearActivation activation, const TensorView& out) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (int i = 0; i < 256; ++i) all[i] = from_e4m3(static_cast<uint8_t>(i));
    return all;
  }();
  const auto& weights = *static_cast<const EightBitWeights*>(packed.storage_.get());
  const int64_t in = packed.in(), columns = packed.out();
  const auto* numbers = static_cast<const uint8_t*>(weights.values.view().data);
  const float* bias = packed.has_bias() ? packed.bias_.as<float>() : nullptr;
  const auto run = [&](auto tag, auto out_tag, int64_t begin, int64_t end) {
    using T = decltype(tag);
    using Out = decltype(out_tag);
    std::vector<float> row(in);
    std::vector<uint8_t> rounded(in);
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < in; ++i) row[i] = to_float(x.as<T>()[r * x.row_stride() + i]);
      const float scale = quantize_row_e4m3(row.data(), in, rounded.data());
      for (int64_t i = 0; i < in; ++i) row[i] = values[rounded[i]];
      for (int64_t o = 0; o < columns; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i)
          sum += static_cast<double>(row[i]) * values[numbers[o * in + i]];
        const double product = sum * (scale * weights.scales.as<float>()[o]);
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
