#pragma once
// QueueDenoiser: the segment queue of a long video on one rank (parallel/schedule/segment_queue.h).
// The last stage keeps the rows of every segment and the solver's state of each, guides and steps;
// the first stage has the rows that its forwards read; one rank gets the segments that are done.
//
// Memory of a rank beside its weights, with r bytes per token of the latent and S tokens per frame,
// for a queue of Q = min(T, B) segments of P frames: its first and its last stage hold (Q + 1) P S
// r for the latents, the last one 3 Q P S r for the solver and 2 (P + C) S r for the velocities;
// every stage its kept keys (parallel/methods/segment_context.h) and 2 or 3 hidden buffers. Where
// steps are skipped, the last stage keeps P S D 4 bytes per branch for each set of added rows
// (QueuePlanConfig::kept_sets). Nothing depends on the length of the video.
#include <algorithm>
#include <map>
#include <optional>

#include "engine/latents/latent_program.h"
#include "parallel/methods/segment_context.h"
#include "parallel/schedule/segment_queue.h"

namespace weft {

// Describes the queue of a job to plan_queue: all but the steps, the segments and their prompts. A
// rank sends hidden rows in the dtype `wire`.
QueuePlanConfig queue_config(const RankPlacement& placement, const TransformerTraits& traits,
                             DType wire, const std::array<int64_t, 4>& shape,
                             int64_t segment_frames);

// Describes a job's queue to plan_queue.
QueuePlanConfig queue_plan(const JobFacts& facts, const Components& parts,
                           const RankPlacement& placement);

class QueueDenoiser final : private LatentProgram {
 public:
  // All experts must be able to be resident at once.
  QueueDenoiser(const Rank& rank, DType wire);

  // Returns false where before_turn stopped the job. Throws Error(kNonFinite) that names segment,
  // step and place where a velocity is not finite. For a checkpoint each rank of the last stage
  // sends the root 4 bytes per value of its rows, for the latent and for each tensor of the
  // history.
  bool run(const QueuePlanConfig& config, Job& job);

  using LatentProgram::streaming;
  size_t context_bytes() const { return context_bytes_; }  // kept keys of the last run
  // The most bytes of each of the last run's sets (QueuePlanConfig::kept_sets): the keys, and the
  // added rows of the first segment, which has more frames than the others.
  size_t set_bytes() const { return set_bytes_; }

 private:
  void make_context();
  std::vector<int> branches() const;
  size_t added_bytes() const;  // of a set
  // Runs the turns from `first` on. Returns false at a turn before which before_turn says
  // otherwise.
  QueuePlanConfig first_segments() const;
  bool run_turns(int first);
  int updater(int part) const;
  bool begin_turn(int turn) override;
  void enter(const Step& step) override;
  bool begin_pass(const Step& step) override;
  std::optional<BlockCache::Rows> added_rows(const Step& step) override;
  void write_before(const Step& step, const Forward& forward, const TensorView& x) override;
  void word(const Step& step) override;
  void decode(const Step& step) override;
  int zone(const Step& step) const override;
  TensorView latent_rows(const Step& step) override;
  TensorView velocity_rows(const Step& step) override;
  Part part_of(const SlotId& slot, const Step& decode) override {
    return {slots[slot], tokens_of_part(decode.pass.segment, slot.part)};
  }
  SlotId segment_slot(int segment) override { return config_->segment_slot(segment, own_part()); }
  int64_t segment_frames(int segment) override {
    return config_->own(segment).size() / config_->frame_tokens * traits_.patch[0];
  }
  TokenRanges reported(int segment, int rank) override;
  void enter_segment(int segment, const TensorView& latent) override;
  void cut_segment(int segment, const TensorView& latent, const TensorView& rows) override {
    cut_rows(latent, segment, own_part(), rows);
  }
  bool steps_segment(int segment) override {
    return last_stage() && begins_with(segment_slot(segment));
  }
  bool begins_with(const SlotId& slot) const {
    return std::ranges::count(begins_, slot, &SlotVersion::slot) > 0;
  }

  int own_part() const { return placement_.mesh().sequence_index(placement_.rank()); }
  // The rows of a part of a segment among those of its own frames.
  Range rows_of(int segment, int part) const;
  TokenRanges tokens_of_part(int segment, int part) const {
    return {{rows_of(segment, part)}, config_->own(segment).size()};
  }
  const TensorView& rows(int segment, int part);
  Segment segment_of(int number) const;
  void cut_rows(const TensorView& latent, int segment, int part, const TensorView& rows);
  const Rope& right_positions(const Pass& pass);

  const QueuePlanConfig* config_ = nullptr;
  std::vector<SlotVersion> begins_{};  // what the plan of the run's first turn begins with
  int turn_ = 0;                       // the turn that began last, and what before_turn said
  StepAction action_ = StepAction::kContinue;
  std::optional<SegmentContext> context_;
  size_t context_bytes_ = 0, set_bytes_ = 0;
  std::array<Tensor, 2> velocities_;     // of a whole forward, by branch
  std::map<int, Rope> right_positions_;  // by expert
};

}  // namespace weft
