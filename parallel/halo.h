#pragma once
// Halo: the seam that convolutions ask whose picture may be split into bands of rows. IdentityHalo
// is the answer for one rank.
#include "kernels/tensor.h"

namespace weft {

struct Context;

// A band with the neighbours' rows around it. `before` and `after` say how many rows were added on
// each side; the rest of what was asked for lies outside the picture and is the convolution's zero
// padding.
struct HaloView {
  TensorView view;
  int64_t before = 0, after = 0;
};

struct Halo {
  virtual ~Halo() = default;
  // band's rows along `dim` plus up to `before` rows above and `after` below. The view lives until
  // the caller's arena scope ends.
  virtual HaloView exchange(Context& context, const TensorView& band, int dim, int64_t before,
                            int64_t after) = 0;
};

class IdentityHalo final : public Halo {
 public:
  HaloView exchange(Context&, const TensorView& band, int, int64_t, int64_t) override {
    return {band, 0, 0};
  }
};

}  // namespace weft
