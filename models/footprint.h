#pragma once
// The bytes that one rank's models take, found by dry runs (kernels/dry_run.h).
#include "kernels/dry_run.h"
#include "models/encoder.h"
#include "models/transformer.h"
#include "models/vae.h"

namespace weft {

// A transformer without values. `weights.passing` is what its loading needs beyond the weights.
struct DryTransformer {
  std::unique_ptr<Transformer> model;
  Footprint weights;
};
DryTransformer dry_load(DryRun& run, const TransformerModel& model, const TensorFile& file,
                        const TransformerLoad& load);

// One branch's prepare and one forward of the loaded blocks with one timestep. `held` is the
// Conditioning and the Rope; the rows in and out are not counted. `text` counts the prompt's rows,
// `text_length` is as in Conditions.
Footprint dry_forward(DryRun& run, const Transformer& model, Context& context,
                      std::array<int64_t, 3> grid, int64_t text, int64_t text_length);

// The encoding of an input; what it gives is not counted, nor is the input.
template <class Traits>
Footprint dry_encode(DryRun& run, const Encoder<Traits>& encoder, Context& context,
                     typename Traits::Input in, typename Traits::Output out) {
  return run.measure([&] { encoder.encode(context, in, out); });
}

// The decoding of `latent_frames` frames of a latent of size h x w. `held` is what the decoder
// remembers; the latent and the frames are not counted.
Footprint dry_decode(DryRun& run, const Vae& vae, Context& context, int64_t h, int64_t w,
                     int64_t latent_frames);

}  // namespace weft
