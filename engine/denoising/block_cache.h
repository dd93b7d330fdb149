#pragma once
// BlockCache: what the last pipeline stage of a job with a step cache keeps: per branch that it
// computes, the hidden rows behind the last block minus those behind the embedding, of the last
// step that ran the blocks. A skipped step embeds the latent, adds them and runs the head.
//
// The stage embeds the latent itself, for the difference too: it has the latent because it updates
// it, and the embedding's weights are small. So every layout subtracts and adds the same rows in
// the same way, and a skipped step needs no message between stages.
//
// Memory: (n + j) D 4 bytes per branch for n tokens and j rows of joint text, and n C p 4 for the
// velocity of the step before.
#include <array>
#include <vector>

#include "engine/denoising/staged_program.h"

namespace weft {

// The sum of |a - b| and that of |b|, over values.
struct Change {
  double change = 0, size = 0;
  double relative() const { return size > 0 ? change / size : 0; }
};
Change change_of(Stream& stream, const TensorView& a, const TensorView& b);

class BlockCache final : public HiddenHook {
 public:
  using Forward =
      std::function<void(const BlockRange& blocks, const TensorView& in, const TensorView& out)>;

  BlockCache(Stream& stream, Arena& arena, int64_t width, int steps);

  // A forward of the branch is about to run its blocks with this object as its hook. `latent` are
  // its rows, `rows` counts its hidden rows, and `forward` enqueues other parts of the same model.
  void watch(int branch, int blocks, const TensorView& latent, int64_t rows,
             const Forward& forward);
  void before_head(Context& context, const TensorView& x) override;
  // Writes the velocity of a skipped step.
  void reuse(int branch, int blocks, const TensorView& latent, const TensorView& velocity,
             const Forward& forward);

  // Notes the velocity of the positive prompt in a step, behind the one in the step before.
  void note_velocity(int step, const TensorView& velocity);
  void note_audit(int step, const TensorView& reused, const TensorView& computed);

  // By step: the change of the velocity from the step before, and of an audited step's error.
  std::vector<Change> changes, errors;

 private:
  struct Watched {
    int branch = 0;
    BlockRange embedding{};
    TensorView latent{};
    const Forward* forward = nullptr;
  };

  Stream& stream_;
  Arena& arena_;
  const int64_t width_;
  Watched watched_{};
  std::array<Tensor, 2> added_{};  // by the blocks, per branch
  Tensor velocity_{};              // of the step before
};

}  // namespace weft
