#pragma once
// BlockCache: what the last pipeline stage of a job with a step cache keeps: per branch that it
// computes (and per segment of the queue), what the blocks that can be skipped added to the hidden
// rows before them, in the last step that ran them. A skipped step adds it to its own rows before
// those blocks, and runs the head.
//
// The stage has those rows itself. Where all blocks are skipped (TeaCache) it embeds the latent,
// which it has because it updates it; after the first block (FirstBlock) they are sent to it. So
// every layout subtracts and adds the same rows in the same way.
//
// Memory: (n + j) D 4 bytes per branch for n tokens and j rows of joint text, and n C p 4 for the
// velocity of the step before.
#include <functional>
#include <map>
#include <vector>

#include "engine/latents/job.h"
#include "kernels/arena.h"

namespace weft {

Change change_of(Stream& stream, const TensorView& a, const TensorView& b);

class BlockCache {
 public:
  using Forward =
      std::function<void(const BlockRange& blocks, const TensorView& in, const TensorView& out)>;

  BlockCache(Stream& stream, Arena& arena, int64_t width, int steps);

  // A forward's hidden rows, and those among them that are kept, under a slot.
  struct Rows {
    SlotId slot{};
    int64_t all = 0;
    Range kept{};
  };
  // Writes the hidden rows before the blocks that can be skipped.
  using Before = std::function<void(const TensorView& x)>;
  // Keeps what the blocks of a forward added to its rows. `x` are the rows that its hook sees.
  void keep(const Rows& rows, const Before& before, const TensorView& x);
  // Writes the velocity of a skipped step of `blocks` blocks. That of rows that are not kept is of
  // no use.
  void reuse(const Rows& rows, int blocks, const Before& before, const TensorView& velocity,
             const Forward& forward);

  // Notes the velocity of the positive prompt in a step, after the one in the step before.
  void note_velocity(int step, const TensorView& velocity);
  void note_audit(int step, const TensorView& reused, const TensorView& computed);

  // By step: the change of the velocity from the step before, and of an audited step's error.
  std::vector<Change> changes, errors;

 private:
  Stream& stream_;
  Arena& arena_;
  const int64_t width_;
  std::map<SlotId, Tensor> added_{};  // by the blocks that can be skipped
  Tensor velocity_{};                 // of the step before
};

}  // namespace weft
