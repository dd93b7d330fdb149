#include "engine/preview/preview_rows.h"

#include <algorithm>

#include "kernels/pointwise.h"

namespace weft {
namespace {

// The map of rows of `row` values, of which the first `begun` of each channel have the map `first`.
PackedLinear packed_map(Stream& stream, const ColourMap& map, const ColourMap& first, int64_t begun,
                        int64_t row) {
  const auto channels = static_cast<int64_t>(map.rgb.size());
  const int64_t values = row / channels;  // of a channel in one row
  Tensor weight(DType::kF32, {3 * values, row}), bias(DType::kF32, {3 * values});
  std::fill_n(weight.as<float>(), weight.count(), 0.0f);
  for (int64_t colour = 0; colour < 3; ++colour)
    for (int64_t i = 0; i < values; ++i) {
      const ColourMap& own = i < begun ? first : map;
      const int64_t out = colour * values + i;
      bias.as<float>()[out] = own.constant[static_cast<size_t>(colour)];
      for (int64_t c = 0; c < channels; ++c)
        weight.as<float>()[out * row + c * values + i] =
            own.rgb[static_cast<size_t>(c)][static_cast<size_t>(colour)];
    }
  return pack_linear(stream, weight, bias, DType::kF32);
}

}  // namespace

PreviewRows::PreviewRows(Stream& stream, const PreviewFit& fit, const TokenRanges& tokens,
                         const LatentRows& rows) {
  const int64_t values = rows.row / static_cast<int64_t>(fit.map.rgb.size());
  int64_t at = 0;
  const auto add = [&](int64_t count, bool first) {
    if (count <= 0) return;
    stretches_.push_back({{at, at + count}, first});
    at += count;
  };
  for (const Range& range : tokens.ranges) {
    const int64_t until =
        fit.first ? std::clamp(rows.frame_tokens, range.begin, range.end) : range.begin;
    add(until - range.begin, true);
    add(range.end - until, false);
  }
  later_ = packed_map(stream, fit.map, fit.map, 0, rows.row);
  if (std::ranges::any_of(stretches_, &Stretch::first))
    first_ = packed_map(stream, fit.map, *fit.first, values / rows.frames, rows.row);
  colours_ = Tensor(DType::kF32, {at, 3 * values}, stream.device());
}

void PreviewRows::predict(Stream& stream, Arena& arena, float sigma, const TensorView& latent,
                          const TensorView& velocity, const Range& own) {
  const Arena::Scope scope(arena);
  const TensorView predicted = arena.alloc(DType::kF32, velocity.shape());
  axpby(stream, 1, latent, -sigma, velocity, predicted);
  for (const Stretch& stretch : stretches_) {
    const Range rows{std::max(stretch.rows.begin, own.begin), std::min(stretch.rows.end, own.end)};
    if (rows.begin < rows.end)
      linear(stream, predicted.slice(0, rows.begin - own.begin, rows.size()),
             stretch.first ? first_ : later_, LinearActivation::kNone,
             colours_.view().slice(0, rows.begin, rows.size()));
  }
}

}  // namespace weft
