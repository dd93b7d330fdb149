#include "kernels/cpu/linear_fp8.h"

#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/linear_int8.h"
#include "kernels/cpu/linear_numbers.h"
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
  struct Numbers {
    const uint8_t* weights;
    std::vector<uint8_t> rounded;
    float quantize(std::vector<float>& x) {
      const float scale =
          quantize_row_e4m3(x.data(), static_cast<int64_t>(x.size()), rounded.data());
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
  const auto& packed_weights = *static_cast<const EightBitWeights*>(packed.storage_.get());
  linear_of_numbers(stream, x, packed, activation, out, [&] {
    return Numbers{static_cast<const uint8_t*>(packed_weights.values.view().data),
                   std::vector<uint8_t>(packed.in())};
  });
}

}  // namespace weft::cpu
