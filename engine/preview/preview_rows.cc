#include "engine/preview/preview_rows.h"

#include <algorithm>

#include "kernels/pointwise.h"

namespace weft {

PreviewRows::PreviewRows(Stream& stream, const PreviewFit& fit, int64_t rows, int64_t row) {
  const auto channels = static_cast<int64_t>(fit.rgb.size());
  const int64_t values = row / channels;  // of a channel in one row
  Tensor weight(DType::kF32, {3 * values, row}), bias(DType::kF32, {3 * values});
  std::fill_n(weight.as<float>(), weight.count(), 0.0f);
  for (int64_t colour = 0; colour < 3; ++colour)
    for (int64_t i = 0; i < values; ++i) {
      const int64_t out = colour * values + i;
      bias.as<float>()[out] = fit.constant[static_cast<size_t>(colour)];
      for (int64_t c = 0; c < channels; ++c)
        weight.as<float>()[out * row + c * values + i] =
            fit.rgb[static_cast<size_t>(c)][static_cast<size_t>(colour)];
    }
  weights_ = pack_linear(stream, weight, bias, DType::kF32);
  colours_ = Tensor(DType::kF32, {rows, 3 * values}, stream.device());
}

void PreviewRows::predict(Stream& stream, Arena& arena, float sigma, const TensorView& latent,
                          const TensorView& velocity, const Range& own) {
  const Arena::Scope scope(arena);
  const TensorView predicted = arena.alloc(DType::kF32, velocity.shape());
  axpby(stream, 1, latent, -sigma, velocity, predicted);
  linear(stream, predicted, weights_, LinearActivation::kNone,
         colours_.view().slice(0, own.begin, own.size()));
}

}  // namespace weft
