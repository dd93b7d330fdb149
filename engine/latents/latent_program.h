#pragma once
// LatentProgram: the program of all plans that denoise a latent. A rank keeps the rows of latents,
// the velocities and the hidden states that it owns in slots. A forward predicts the velocity of a
// segment's rows (Pass::segment); an update guides it and moves the rows by a step of the solver; a
// checkpoint gathers the rows and the solver's state of segments on the root; a decode makes a
// latent whole. What differs from schedule to schedule is what the virtual functions say.
//
// Memory: the solver's state of this rank's rows of every segment until its last update, 12 bytes
// per value but for Euler, which has none, beside what Forwards, BlockCache and the slots hold.
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "engine/latents/block_cache.h"
#include "engine/latents/forwards.h"
#include "engine/latents/job.h"
#include "engine/parts/rank.h"
#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/interpreter.h"

namespace weft {

// Fills in the layout and the sizes of a plan's messages, for forwards of `all` tokens.
DenoisePlanConfig staged_config(const RankPlacement& placement, const TransformerTraits& traits,
                                DType dtype, const Sequence& all, const StalePatches& patches = {});

// Makes a latent [c, f, H, W] of the rows that ranks send the root, where its stream runs;
// elsewhere the result is empty. A rank sends its own rows of the tokens that `tokens` says, which
// may be none. The rows have c of the latent's channels.
using TokensOfRank = std::function<TokenRanges(int rank)>;
Tensor join_on_root(const Rank& rank, const Tag& tag, const TensorView& own,
                    const std::array<int64_t, 4>& shape, const TokensOfRank& tokens);

class LatentProgram : public Program, protected PassContext {
 public:
  // Weight offload of the last run's forwards.
  const OffloadTotals& streaming() const { return forwards_.streaming(); }

 protected:
  using Forward = BlockCache::Forward;

  // `wire` is the dtype of hidden rows in slots.
  LatentProgram(const Rank& rank, DType wire, Graphs graphs);

  // Forgets the last run.
  void begin(Job& job, const ForwardMethod& method, bool in_segments, bool by_micro = false);

  void load(const Step& step) override { forwards_.load(step.pass.model, false); }
  void compute(const Step& step) override;
  // Runs the blocks of a forward, or reuses what they added in an earlier one.
  void run_forward(const Step& step, bool reuses);
  void update(const Step& step) override;
  void prepare(const Step& message) override;
  void taken(const Step& step) override { job_->host.stepped(step); }
  float timestep(const Pass& pass) override { return sampler().timesteps()[pass.step]; }
  TensorView signal(const Pass& pass) override { return job_->signal[pass.branch]; }

  // Called before a forward. False: its segment has no rows, and nothing is computed.
  virtual bool begin_pass(const Step&) { return true; }
  // The tokens that this rank computes, and the rows of hidden state beside them
  // (Conditioning::joint_rows).
  virtual int64_t forward_rows(const Step& step) { return step.tokens.size(); }
  virtual int64_t joint_rows(const Pass&) { return 0; }
  // The rows of a message, which are at most those of its plan.
  virtual int64_t message_rows(const Step& message);
  // The rows of the latent that a step of the first stage reads, and the rows of the velocity that
  // one of the last stage writes.
  virtual TensorView latent_rows(const Step& step) { return slots[step.reads[0].slot]; }
  virtual TensorView velocity_rows(const Step& step);
  // Calls forward(blocks, in, out) with the rows that the step reads and writes, as
  // Transformer::forward takes them.
  virtual void run_blocks(const Step& step, const Forward& forward);
  // The rows that a step cache keeps of a forward, or that one which reuses them gets.
  virtual std::optional<BlockCache::Rows> added_rows(const Step&) { return std::nullopt; }
  // Writes the hidden rows before the blocks that can be skipped to `x`.
  virtual void write_before(const Step&, const Forward&, const TensorView& /*x*/) {}

  // The rows that an update moves, or none, and the velocity along which it does.
  virtual TensorView updated_rows(const Step& step) { return slots[step.reads[0].slot]; }
  virtual TensorView velocity_of(const Step& step);
  // Called before and after the solver's step. `rows` are among those that the rank has of the
  // segment, and `latent` and `velocity` begin with them.
  virtual void moves(const Step& step, const Range& rows, const TensorView& latent,
                     const TensorView& velocity);
  virtual void moved(const Range& /*rows*/, const TensorView& /*latent*/) {}
  // The parts of this rank's rows of a segment that the solver steps apart.
  virtual std::vector<Range> solver_parts(const TensorView& rows) { return {{0, rows[0]}}; }

  // The latent frames of a segment, and those among them that a rank begins with.
  virtual int64_t segment_frames(int /*segment*/) { return shape_[1]; }
  virtual Range frames_held(int segment, int /*rank*/) { return {0, segment_frames(segment)}; }
  // The slot of this rank's rows of it, and the tokens that a rank reports to the root; a schedule
  // without checkpoints has none.
  virtual SlotId segment_slot(int /*segment*/) { return kLatentSlot; }
  virtual TokenRanges reported(int /*segment*/, int /*rank*/) { return {}; }
  // Makes the slots of a segment from the frames that this rank begins with. Cuts this rank's rows
  // out of a tensor like these frames.
  virtual void enter_segment(int /*segment*/, const TensorView& /*latent*/) {}
  virtual void cut_segment(int /*segment*/, const TensorView&, const TensorView& /*rows*/) {}
  virtual bool steps_segment(int /*segment*/) { return last_stage(); }  // this rank does
  // The noise of the frames that this rank begins with, on its device.
  Tensor drawn(const Segment& segment, int64_t frames) const;
  // Joins latents and the solver's state of those among them that are `stepped` on the root's host.
  // Every rank that reports rows sends the root 4 bytes per value, for the latent and for each
  // tensor of the history.
  Snapshot gather(int turn, const Range& segments, const Range& stepped);
  // Gives every rank what it has of a snapshot, which it releases.
  void restore(int turn, const Range& segments, const Range& stepped, Snapshot& snapshot);
  // The same as join_on_root, of this program's rank.
  Tensor joined_on_root(const Tag& tag, const TensorView& own, const std::array<int64_t, 4>& shape,
                        const TokensOfRank& tokens) {
    return join_on_root({stream_, arena_, experts_, placement_}, tag, own, shape, tokens);
  }
  // The rows of a slot that a decode reads, and their tokens among those that it decodes.
  struct Part {
    TensorView rows{};
    TokenRanges tokens{};
  };
  virtual Part part_of(const SlotId& slot, const Step& decode) = 0;
  // Makes a latent [C, f, H, W] of the parts that a decode reads.
  Tensor joined(const Step& decode);

  bool first_stage() const { return placement_.mesh().at(Axis::kLayers, placement_.rank()) == 0; }
  bool last_stage() const;
  int64_t tokens() const { return grid_[0] * grid_[1] * grid_[2]; }
  const Sampler& sampler() const { return job_->facts.sampler; }
  Communicator* others() const { return placement_.alone() ? nullptr : &placement_.communicator(); }

  struct SolverPart {
    Range rows{};
    SamplerState state;
  };
  std::vector<SolverPart>& solver(int segment, const TensorView& rows);
  void forget_solver(int segment) { solver_.erase(segment); }

  Stream& stream_;
  Arena& arena_;
  Experts& experts_;
  const RankPlacement& placement_;
  const TransformerTraits traits_;
  const DType dtype_;
  std::array<int64_t, 4> shape_{};  // of the latent of a forward
  std::array<int64_t, 3> grid_{};   // its tokens along frame, row and column
  Job* job_ = nullptr;
  Forwards forwards_;
  std::optional<BlockCache> cache_{};  // on the last stage of a job with a step cache

 private:
  using SegmentRows = std::function<TensorView(int segment)>;
  using TakeSegment = std::function<void(int segment, const TensorView& latent)>;
  TensorView history_rows(int segment, size_t k);
  void restore_history(int segment, size_t k, const TensorView& latent);
  Tensor gather_segment(int segment, const Tag& tag, const SegmentRows& rows);
  Tensor gather_segments(const Range& segments, const Tag& tag, const SegmentRows& rows);
  void share(const Range& segments, const Tag& tag, Tensor whole, const TakeSegment& take);

  std::map<int, std::vector<SolverPart>> solver_{};  // by segment; on the last stage alone
};

}  // namespace weft
