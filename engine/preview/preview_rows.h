#pragma once
// PreviewRows: what a rank's rows of the latent will show, as colours. The prediction at noise
// level s is x0 = x - s v, with v = noise - x0 as the transformer predicts it; a PreviewFit turns
// it into colours.
//
// Memory for n token rows of p latent values per channel: 12 n p bytes and the maps, and 4 n C p
// bytes of the arena while they are computed. Only the plan's ops are used, so it runs wherever a
// step runs.
#include <vector>

#include "engine/preview/preview_fit.h"
#include "kernels/arena.h"
#include "kernels/linear.h"
#include "parallel/partition.h"

namespace weft {

// Steps whose prediction is shown: every `every`-th one, and the last.
struct PreviewSteps {
  int every = 1, total = 0;
  bool shows(int done) const { return done > 0 && (done % every == 0 || done == total); }
};

// Describes the rows of a video's tokens, which hold its latent.
struct LatentRows {
  int64_t frame_tokens = 0;  // tokens of a frame, beginning with the first frame
  int64_t row = 0;           // values of a row: as many of each channel
  int64_t frames = 1;        // latent frames of a row, whose values are one after the other
};

class PreviewRows {
 public:
  // Rows [tokens, row] f32 of the latent.
  PreviewRows(Stream& stream, const PreviewFit& fit, const TokenRanges& tokens,
              const LatentRows& rows);

  // Predicts the rows `own` of these, of which `latent` and `velocity` [n, row] are the values.
  void predict(Stream& stream, Arena& arena, float sigma, const TensorView& latent,
               const TensorView& velocity, const Range& own);
  const TensorView& colours() const { return colours_; }  // [rows, 3 row / C] f32, red first

 private:
  // Rows that have a map in common.
  struct Stretch {
    Range rows;
    bool first = false;
  };

  std::vector<Stretch> stretches_;
  PackedLinear later_, first_{};  // of rows after the first frame, or of all; of its own rows
  Tensor colours_;
};

}  // namespace weft
