#pragma once
// LatentProgram: what all plans that denoise a latent have in common. A segment is what enters and
// leaves as a whole: a video, a block of the queue, a block of a stream (Pass::clip). A forward
// predicts the velocity of a segment's rows; an update guides it and moves the rows by a step of
// the solver; a checkpoint gathers the rows and the solver's state of segments on the root. What
// differs from schedule to schedule is what the virtual functions say.
//
// Memory: the solver's state of this rank's rows of every segment between its first update and its
// last, 12 bytes per value, beside what Forwards, BlockCache and the slots hold.
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/denoising/block_cache.h"
#include "engine/denoising/forwards.h"
#include "engine/denoising/staged_program.h"

namespace weft {

// A host copy of the latent [C, F, H, W] f32 and of the tensors of Sampler::history.
struct Snapshot {
  Tensor latent{};
  std::vector<std::pair<std::string, Tensor>> history{};
};

// Says what every rank does between two steps: go on, or first gather the latent and the solver's
// history on the root (kKeep), or stop.
enum class StepAction : uint8_t { kContinue, kKeep, kStop, kKeepAndStop };
inline bool keeps(StepAction action) {
  return action == StepAction::kKeep || action == StepAction::kKeepAndStop;
}
inline bool stops(StepAction action) { return action >= StepAction::kStop; }

class LatentProgram : public StagedProgram {
 protected:
  LatentProgram(const Rank& rank, DType wire, Graphs graphs);

  // Forgets the last run. `shape` [C, F, H, W] is that of the latent of a forward, and says its
  // grid of tokens.
  void begin(const std::array<int64_t, 4>& shape, std::span<const double> guidance,
             ForwardJob job);

  void load(const Step& step) override { forwards_.load(step.pass.model, false); }
  void compute(const Step& step) override;
  // Runs the blocks of a forward, or reuses what they added in an earlier one.
  void run_forward(const Step& step, bool reuses);
  void update(const Step& step) override;

  // Called before a forward. False: its segment has no rows, and nothing is computed.
  virtual bool begin_pass(const Step&) { return true; }
  // The rows that a step cache keeps of the forward, or that a forward which reuses them gets.
  virtual std::optional<BlockCache::Rows> added_rows(const Step&) { return std::nullopt; }
  // Writes the hidden rows before the blocks that can be skipped to `x`.
  virtual void write_before(const Step&, const Forward&, const TensorView& /*x*/) {}
  // The rows that an update moves, and the velocity along which it does.
  virtual TensorView updated_rows(const Step& step) { return slots[step.reads[0].slot]; }
  virtual TensorView velocity_of(const Step& step) {
    return guided(step, experts_.family(), guidance_[step.pass.model]);
  }
  // Called before and after the solver's step. `rows` are among those that the rank has of the
  // segment, and `latent` and `velocity` begin with them.
  virtual void moves(const Step&, const Range& /*rows*/, const TensorView& /*latent*/,
                     const TensorView& /*velocity*/) {}
  virtual void moved(const Range& /*rows*/, const TensorView& /*latent*/) {}

  // Joins the rows that ranks have of segments along the frames, and the solver's state of those
  // among them that are `stepped`, on the root's host. Every rank that reports rows sends the root
  // 4 bytes per value, for the latent and for each tensor of the history.
  Snapshot gather(int turn, const Range& segments, const Range& stepped);
  // Gives the solver's k-th tensor of a segment the values that this rank has of `latent`, in the
  // same layout as the segment's rows.
  void restore_history(int segment, size_t k, const TensorView& latent);
  // The slot of a segment's rows, its latent frames, and the tokens that a rank reports of it.
  virtual SlotId segment_slot(int /*segment*/) { return kLatentSlot; }
  virtual int64_t segment_frames(int /*segment*/) { return shape_[1]; }
  // A schedule without checkpoints has none.
  virtual TokenRanges reported(int /*segment*/, int /*rank*/) { return {}; }
  // Cuts this rank's rows out of a segment's latent.
  virtual void cut_segment(int /*segment*/, const TensorView&, const TensorView& /*rows*/) {}
  // The parts of this rank's rows of a segment that the solver steps apart.
  virtual std::vector<Range> solver_parts(const TensorView& rows) { return {{0, rows[0]}}; }

  struct SolverPart {
    Range rows{};
    SamplerState state;
  };
  std::vector<SolverPart>& solver(int segment, const TensorView& rows);
  void forget_solver(int segment) { solver_.erase(segment); }
  const Sampler& sampler() const { return forwards_.sampler(); }

  Experts& experts_;
  Forwards forwards_;
  std::optional<BlockCache> cache_{};  // on the last stage of a job with a step cache

 private:
  using SegmentRows = std::function<TensorView(int segment)>;
  TensorView history_rows(int segment, size_t k);
  Tensor gather_segments(const Range& segments, const Tag& tag, const SegmentRows& rows);

  std::vector<double> guidance_{};
  std::map<int, std::vector<SolverPart>> solver_{};  // by segment; on the last stage alone
};

}  // namespace weft
