#pragma once
// VideoEncoder: the latent of a video whose rows lie on several ranks.
#include <array>
#include <functional>

#include "engine/parts/rank_placement.h"
#include "kernels/arena.h"
#include "models/vae.h"

namespace weft {

// The ranks that decode (RankPlacement::band) encode their rows of the video: r rows of F latent
// frames of C channels and w columns are sent to each of the other ranks, 4 C F r w bytes.
class VideoEncoder {
 public:
  // `latent` is the shape [C, F, h, w] of the result.
  VideoEncoder(Stream& stream, Arena& arena, const RankPlacement& placement,
               const VaeTraits& traits, const std::array<int64_t, 4>& latent);

  // Writes this rank's rows of the pictures from `first` on to `pictures` [n, 3, rows, W] f32 in
  // [-1, 1], on the stream's device.
  using Fill = std::function<void(int64_t first, const TensorView& pictures)>;
  // Returns this rank's rows of the latent, normalised, on its device; `vae` has an encoder. `next`
  // is called after every latent frame. Only ranks with rows() call it. Throws Error(kNonFinite),
  // which names `what`.
  Tensor encode_rows(
      const Vae& vae, const char* what, const Fill& fill,
      const std::function<void()>& next = [] {});
  // Returns the whole latent on the device of every rank, by an all-gather of the bands. All ranks
  // call it; `own` is empty where there are no rows.
  Tensor join(Tensor own);

  // This rank's rows of the pictures.
  Range rows() const;

 private:
  Stream& stream_;
  Arena& arena_;
  const RankPlacement& placement_;
  const int64_t scale_;  // pixels per latent row
  const std::array<int64_t, 4> shape_;
};

}  // namespace weft
