// Reference GEMM of 8-bit integers, and the packing of every 8-bit format.
#include "kernels/cpu/linear_int8.h"

#include <cmath>
#include <vector>

#include "kernels/copy.h"
#include "kernels/cpu/linear_fp8.h"
#include "kernels/cpu/linear_quantized.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/reference.h"
#include "kernels/fp8.h"

namespace weft::cpu {

float quantize_row_reference(const float* x, int64_t count, int8_t* out) {
  float most = 0, poison = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::fmax(most, std::fabs(x[i]));
    poison += x[i] * 0;  // NaN if x[i] is NaN or Inf
  }
  const bool finite = poison == 0;
  const float to_unit = most > 0 && finite ? 127 / most : 0;
  for (int64_t i = 0; i < count; ++i)
    out[i] = finite ? static_cast<int8_t>(std::nearbyint(x[i] * to_unit)) : int8_t{0};
  return most / 127 + poison;
}

void quantize_weights(Stream& stream, const TensorView& weight, WeightFormat format,
                      EightBitWeights& weights) {
  const int64_t out = weight[0], in = weight[1];
  const bool whole = format == WeightFormat::kInt8;
  weights.values = Tensor(whole ? DType::kI8 : DType::kF8E4M3, {out, in}, stream.device());
  weights.scales = Tensor(DType::kF32, {out}, stream.device());
  if (stream.device().measured()) return;
  constexpr int64_t kRows = 64;  // rows converted at a time
  const Tensor wide(DType::kF32, {std::min(kRows, out), in});
  const auto for_rows = [&](auto&& body) {
    for (int64_t row = 0; row < out; row += kRows) {
      const int64_t count = std::min(kRows, out - row);
      copy(stream, weight.slice(0, row, count), wide.view().slice(0, 0, count));
      body(row, count);
    }
  };
  float scale = 0;  // one scale for all rows
  if (format == WeightFormat::kFp8Tensor) {
    float most = 0;
    for_rows([&](int64_t, int64_t count) {
      for (int64_t i = 0; i < count * in; ++i) most = larger_e4m3(most, wide.as<float>()[i]);
    });
    scale = e4m3_scale(most);
  }
  for_rows([&](int64_t row, int64_t count) {
    parallel_for(stream, count, row_grain(in), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* from = wide.as<float>() + r * in;
        void* to = static_cast<int8_t*>(weights.values.view().data) + (row + r) * in;
        float& own = weights.scales.as<float>()[row + r];
        own = scale;
        if (whole)
          own = quantize_row_reference(from, in, static_cast<int8_t*>(to));
        else if (format == WeightFormat::kFp8)
          own = quantize_row_e4m3(from, in, static_cast<uint8_t*>(to));
        else
          quantize_e4m3(from, in, scale, static_cast<uint8_t*>(to));
      }
    });
  });
}

namespace {

void linear_int8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                 LinearActivation activation, const TensorView& out) {
  struct Quantizer {
    const int8_t* weights;
    std::vector<int8_t> row;
    float quantize(std::vector<float>& x) {
      return quantize_row_reference(x.data(), static_cast<int64_t>(x.size()), row.data());
    }
    float sum(const std::vector<float>&, int64_t o) const {
      const auto in = static_cast<int64_t>(row.size());
      int32_t sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += int32_t{row[i]} * int32_t{weights[o * in + i]};
      return static_cast<float>(sum);
    }
  };
  const Tensor& values = packed.storage<EightBitWeights>().values;
  linear_quantized(stream, x, packed, activation, out, [&] {
    return Quantizer{static_cast<const int8_t*>(values.view().data),
                     std::vector<int8_t>(packed.in())};
  });
}

}  // namespace

PackedLinear pack_linear_8bit(Stream& stream, const TensorView& weight, const TensorView& bias,
                              DType dtype, WeightFormat format) {
  PackedLinear packed(weight, dtype, format);
  quantize_weights(stream, weight, format, packed.make_storage<EightBitWeights>());
  packed.set_bias(stream, bias);
  return packed;
}

void linear_8bit(Stream& stream, const TensorView& x, const PackedLinear& packed,
                 LinearActivation activation, const TensorView& out) {
  (packed.format() == WeightFormat::kInt8 ? linear_int8 : linear_fp8)(stream, x, packed, activation,
                                                                      out);
}

}  // namespace weft::cpu
