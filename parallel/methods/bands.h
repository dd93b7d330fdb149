#pragma once
// Bands: the VAE's picture is split into bands of rows.
//
// Split: rows of the latent (uneven), and with them the rows of every layer.
// Talk: before every convolution with its neighbours above and below; once per frame with all, for
//   the keys and values of the mid attention, which sees the whole frame.
// Bytes sent by a rank: per convolution F rows W C e to each neighbour that asks (F frames, the
//   remembered ones included; 1 row for the kernels of 3); per frame 2 h_r W C e to each of P - 1
//   (attention). Those of the halo are what exchange is asked for.
// Memory: one copy of the band with its halo per convolution; k and v of a frame.
// Exact: bitwise, the rows are the ones that one rank reads.
// Divisibility: none; at most one band per latent row, a halo never larger than a band.
// Overlap: the band is copied while the halo travels.
// Paper: as DistVAE (xdit-project/DistVAE), with planned halos and no replicated part.
#include <vector>

#include "parallel/communicator.h"
#include "parallel/halo.h"
#include "parallel/pass.h"
#include "parallel/token_mixer.h"

namespace weft {

class BandHalo final : public Halo {
 public:
  // The ranks of `bands` are in the order of their rows, from the top.
  explicit BandHalo(Communicator bands) : bands_(std::move(bands)) {}
  HaloView exchange(Context& context, const TensorView& band, int dim, int64_t before,
                    int64_t after) override;

 private:
  Communicator bands_;
  Pass pass_{};
  int calls_ = 0;  // counts calls within the pass, for the tag's hop
};

// Attention of this band's queries over the keys and values of all bands, in the order of rows.
class BandMixer final : public TokenMixer {
 public:
  // Band i has rows[i] latent rows; a frame's tokens are split in this proportion.
  BandMixer(Communicator bands, std::vector<int64_t> rows);
  void attend(Context& context, const Attend& attend) override;

 private:
  Communicator bands_;
  std::vector<int64_t> rows_;
};

}  // namespace weft
