#pragma once
// StagedProgram: what all plans of a diffusion transformer (plan_denoise) have in common. A rank
// keeps the rows of the latent, the velocities and the hidden states that it owns in slots. The
// latent is cut into rows at the beginning, and made whole before it is decoded. With clips no rank
// has the whole latent: it begins with the frames of its clip, and frame after frame is decoded.
#include <array>
#include <functional>

#include "engine/denoising/block_cache.h"
#include "engine/parts/rank.h"
#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/interpreter.h"

namespace weft {

// Fills in the layout and the sizes of a plan's messages, for a latent of `all` tokens.
DenoisePlanConfig staged_config(const RankPlacement& placement, const TransformerTraits& traits,
                                DType dtype, const Sequence& all, const StalePatches& patches = {});

class StagedProgram : public Program {
 public:
  using Forward = BlockCache::Forward;

 protected:
  // `dtype` is that of hidden rows in slots.
  StagedProgram(Stream& stream, Arena& arena, const RankPlacement& placement,
                const TransformerTraits& traits, DType dtype);

  // Runs the plan of `config` from `latent` [C, F, H, W] f32, which is released once it is cut into
  // rows. F are the frames of the rank's clip (RankPlacement::clip_of), or all of them. Returns
  // false where begin_turn stopped it.
  bool run_from(Tensor latent, const DenoisePlanConfig& config, const StalePatches& patches = {});
  // Called before the plan of a turn is made, where the plan's first blocks run ahead
  // (DenoisePlanConfig::first_block_bytes): whether its step is skipped is decided here.
  virtual void decide(int /*turn*/) {}
  virtual void begun() {}  // called when the rows are there

  // The rows of hidden state beside this rank's tokens (Conditioning::joint_rows).
  virtual int64_t joint_rows(const Pass& pass) = 0;
  void prepare(const Step& message) override;
  // The rows of a message, which are at most those of its plan.
  virtual int64_t message_rows(const Step& message);
  // The tokens of a forward that this rank computes.
  virtual int64_t forward_rows(const Step& step) { return step.tokens.size(); }
  // The rows of the latent that a step of the first stage reads, and those of the velocity that one
  // of the last stage writes.
  virtual TensorView latent_rows(const Step& step) { return slots[step.reads[0].slot]; }
  virtual TensorView velocity_rows(const Step& step);
  // Calls forward(blocks, in, out) with the rows that the step reads and writes, as
  // Transformer::forward takes them.
  virtual void run_blocks(const Step& step, const Forward& forward);
  // The velocity that an update steps along: that of both branches, in the arena.
  TensorView guided(const Step& update, const ModelFamily& family, double scale);
  // The rows of a slot that a decode reads, and their tokens among those that it decodes.
  struct Part {
    TensorView rows{};
    TokenRanges tokens{};
  };
  virtual Part part_of(const SlotId& slot, const Step& decode);
  // Makes a latent [C, f, H, W] of the parts that a decode reads.
  Tensor joined(const Step& decode);
  // Makes a latent [c, f, H, W] of the rows that ranks send the root, on its device; elsewhere the
  // result is empty. A rank sends its own rows of the tokens that `tokens` says, which may be none.
  // The rows have c of the latent's channels.
  Tensor join_on_root(const Tag& tag, const TensorView& own, const std::array<int64_t, 4>& shape,
                      const std::function<TokenRanges(int rank)>& tokens);
  void enter(const Step& step) override;  // lends the part of the own rows that is sent

  bool first_stage() const { return placement_.mesh().at(Axis::kLayers, placement_.rank()) == 0; }
  bool last_stage() const;
  bool holds_latent() const { return slots.has(kLatentSlot); }
  TokenRanges own() const { return tokens_of(placement_.rank()); }
  TokenRanges tokens_of(int rank) const { return placement_.tokens_of(rank, sequence(), patches_); }
  // Their rows among those of all sequence indices, one index after the other.
  Range own_rows() const;
  Sequence sequence() const { return {tokens(), grid_[0]}; }
  int64_t tokens() const { return grid_[0] * grid_[1] * grid_[2]; }
  // Rows [n, row] f32 of this rank's tokens of a latent that run_from() takes.
  void cut(const TensorView& latent, const TensorView& rows) const;

  Stream& stream_;
  Arena& arena_;
  const RankPlacement& placement_;
  const TransformerTraits traits_;
  const DType dtype_;
  std::array<int64_t, 4> shape_{};  // of the latent
  std::array<int64_t, 3> grid_{};   // its tokens along frame, row and column
  StalePatches patches_{};
};

}  // namespace weft
