#pragma once
// Runs of encoders of any kind, and dry runs that predict their memory.
#include <span>
#include <type_traits>
#include <vector>

#include "models/encoder.h"
#include "tests/models/footprint_testing.h"
#include "tests/support/compare.h"

namespace weft::test {

inline int64_t rows_of(const TextEncoderTraits&, std::span<const int32_t> ids) {
  return std::ssize(ids);
}
inline int64_t rows_of(const ImageEncoderTraits& traits, const TensorView&) { return traits.rows; }
inline int64_t rows_of(const AudioEncoderTraits& traits, const TensorView& samples) {
  return traits.rows(samples.count());
}

// Returns all that an encoder gives for an input; of a sound, its hidden states in turn.
template <class Traits>
std::vector<double> encoded(const Encoder<Traits>& encoder, const Traits& traits, Context& context,
                            typename Traits::Input in) {
  if constexpr (std::is_same_v<Traits, AudioEncoderTraits>) {
    std::vector<double> out;
    encoder.encode(context, in, [&](int64_t, const TensorView& state) {
      const std::vector<double> values = to_f64(state);
      out.insert(out.end(), values.begin(), values.end());
    });
    return out;
  } else {
    Tensor out(DType::kF32, {rows_of(traits, in), traits.columns});
    encoder.encode(context, in, out);
    return to_f64(out);
  }
}

// The bytes that one of `parts` ranks takes from its arena for an encoding.
template <class Traits>
size_t dry_arena(const EncoderModel<Traits>& model, const TensorFile& file, const EncoderLoad& load,
                 typename Traits::Input in, int parts = 1, int rank = 0) {
  DryRun dry;
  SerialSeams seams;
  const auto reducer = silent_reducer(parts, rank);
  const auto encoder = model.load(dry.stream(), file, load);
  const int64_t rows = rows_of(model.traits(), in);
  Context context{dry.stream(), dry.arena(), seams.mixer,           *reducer,
                  seams.halo,   {},          TokenRanges::all(rows)};
  if constexpr (std::is_same_v<Traits, AudioEncoderTraits>)
    return dry_encode(dry, *encoder, context, in, [](auto...) {}).arena;
  else
    return dry_encode(dry, *encoder, context, in,
                      dry.tensor(DType::kF32, {rows, model.traits().columns}))
        .arena;
}

}  // namespace weft::test
