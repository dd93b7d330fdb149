#pragma once
// Reducer: the seam that row-parallel linears and full-width norms ask. IdentityReducer is the
// answer for one rank.
#include "kernels/tensor.h"

namespace weft {

struct Context;

struct Reducer {
  virtual ~Reducer() = default;
  virtual int parts() const = 0;  // the number of ranks that share the width
  // Adds `partial` (f32, any shape) over the ranks that share the width, in place.
  virtual void sum(Context& context, const TensorView& partial) = 0;
  // Joins every rank's `part` along `dim` into `whole`.
  virtual void gather(Context& context, const TensorView& part, int dim,
                      const TensorView& whole) = 0;
};

class IdentityReducer final : public Reducer {
 public:
  int parts() const override { return 1; }
  void sum(Context&, const TensorView&) override {}
  void gather(Context& context, const TensorView& part, int dim, const TensorView& whole) override;
};

}  // namespace weft
