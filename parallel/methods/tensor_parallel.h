#pragma once
// Tensor parallelism: each rank holds some heads and feed-forward columns of every layer.
//
// Split: heads and feed-forward columns (uneven).
// Talk: one all-reduce after every row-parallel linear, and one of the row statistics for every
//   full-width norm, over the ranks that share the width.
// Bytes sent by rank r per sum of n values: ring 4 (2 n - c_{r+1} - c_{r+2}), c_i = partition(n, P,
//   i); star: the root 4 (P - 1) n, a leaf 4 n.
// Memory: weights 1/P; scratch n / P (ring) or (P - 1) n (star).
// Exact: partial sums travel in f32 and every rank gets the same bits.
// Divisibility: none; every rank needs a head and a column.
// Overlap: none.
// Paper: Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053), section 3; star: TPI-LLM
//   (arXiv 2410.00531), section 3.3.
#include "parallel/communicator.h"
#include "parallel/pass.h"
#include "parallel/reducer.h"

namespace weft {

class TensorReducer final : public Reducer {
 public:
  explicit TensorReducer(Communicator group, AllReduce algorithm = AllReduce::kRing)
      : group_(std::move(group)), algorithm_(algorithm) {}

  int parts() const override { return group_.size(); }
  // Statistics are vectors, partial sums have rows: they are counted apart.
  void sum(Context& context, const TensorView& partial) override;
  // Rank i's part is partition(whole[dim], P, i) of the width.
  void gather(Context& context, const TensorView& part, int dim, const TensorView& whole) override;

 private:
  Tag next_tag(Context& context, Payload kind);

  Communicator group_;
  AllReduce algorithm_;
  Pass pass_{};
  int calls_ = 0;  // within the pass: the tag's layer
};

}  // namespace weft
