#include "kernels/cpu/linear_fp8.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_quantized.h"
#include "kernels/fp8.h"

namespace weft::cpu {

float quantize_row_e4m3(const float* x, int64_t count, uint8_t* out) {
  float most = 0, poison = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::fmax(most, std::fabs(x[i]));
    poison += x[i] * 0;  // NaN if x[i] is NaN or Inf
  }
  const bool finite = poison == 0;
  const float unit = finite ? e4m3_unit(most) : 0;
  for (int64_t i = 0; i < count; ++i) out[i] = finite ? to_e4m3(x[i] * unit) : uint8_t{0};
  return most / kLargestE4m3 + poison;
}

void quantize_e4m3(const float* x, int64_t count, float scale, uint8_t* out) {
  const float unit = std::isnan(scale) ? 0 : 1 / scale;  // exact, since scale is a power of two
  for (int64_t i = 0; i < count; ++i) out[i] = unit > 0 ? to_e4m3(x[i] * unit) : uint8_t{0};
}

float larger_e4m3(float most, float x) {
  const float magnitude = std::fabs(x);
  if (std::isnan(most) || magnitude <= most) return most;
  return std::isinf(magnitude) ? std::nanf("") : magnitude;
}

void linear_fp8(Stream& stream, const TensorView& x, const PackedLinear& packed,
                LinearActivation activation, const TensorView& out) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (int i = 0; i < 256; ++i) all[i] = from_e4m3(static_cast<uint8_t>(i));
    return all;
  }();
  struct Quantizer {
    const uint8_t* weights;
    std::vector<uint8_t> rounded;
    float tensor_scale;  // 0: every row has its own
    float quantize(std::vector<float>& x) {
      const auto in = static_cast<int64_t>(x.size());
      float scale = tensor_scale;
      if (scale == 0)
        scale = quantize_row_e4m3(x.data(), in, rounded.data());
      else
        quantize_e4m3(x.data(), in, scale, rounded.data());
      for (size_t i = 0; i < x.size(); ++i) x[i] = values[rounded[i]];
      return scale;
    }
    double sum(const std::vector<float>& x, int64_t o) const {
      const auto in = static_cast<int64_t>(x.size());
      double sum = 0;
      for (int64_t i = 0; i < in; ++i)
        sum += static_cast<double>(x[i]) * values[weights[o * in + i]];
      return sum;
    }
  };
  float scale = 0;
  if (packed.format() == WeightFormat::kFp8Tensor) {
    float most = 0;
    visit_dtype(x.dtype, [&](auto tag) {
      using T = decltype(tag);
      for (int64_t r = 0; r < x.rows(); ++r)
        for (int64_t i = 0; i < packed.in(); ++i)
          most = larger_e4m3(most, to_float(x.as<T>()[r * x.row_stride() + i]));
    });
    scale = e4m3_scale(most);
  }
  const Tensor& weights = packed.storage<EightBitWeights>().values;
  linear_quantized(stream, x, packed, activation, out, [&] {
    return Quantizer{static_cast<const uint8_t*>(weights.view().data),
                     std::vector<uint8_t>(packed.in()), scale};
  });
}

}  // namespace weft::cpu
