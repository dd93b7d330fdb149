#pragma once
// Denoiser: the steps of a generation on one rank. Every rank computes, guides and steps only the
// rows of the latent that it owns.
//
// Memory of a rank that owns n of the latent's tokens, with r bytes per token: its last pipeline
// stage holds n r for the latent, n r for each branch's velocity and 3 n r for the solver (none for
// Euler); its first stage n r for the latent; a stage in between none. A step cache adds a
// BlockCache on the last stage, and first-block a FirstBlock on the first stage and the rows after
// that block on both. Before decoding, when the solver's part is released, a rank holds the whole
// latent, and once more as rows where other ranks own some.
//
// No rank holds the latent of all F frames where there are clips: it begins with those of its
// clip. While decoding, a first and a last stage hold n r; a rank that decodes holds one frame, and
// the tokens of other ranks of two. JobHost::take_channels brings the root one of the latent's C
// channels at a time. A checkpoint does gather the whole latent, and the history, on the root.
#include <array>
#include <functional>
#include <optional>

#include "engine/latents/first_block.h"
#include "engine/latents/latent_program.h"
#include "engine/preview/preview_rows.h"

namespace weft {

// Describes a job to plan_denoise: its steps, the replica's layout and the sizes of its messages.
// `motion` says that the forwards read the pictures before a chunk (Conditions::motion).
DenoisePlanConfig plan_config(const JobFacts& facts, const Components& parts,
                              const RankPlacement& placement, bool motion);

// The rows of hidden state that every rank of a sequence axis has beside its tokens: those of a
// prompt of so many rows and, where the forward reads them, of a picture that is shown and of the
// pictures before it. Those of reference pictures are not among them.
int64_t joint_rows_of(const TransformerModel& model, const std::array<int64_t, 3>& grid,
                      int64_t prompt, bool reference, bool motion);

// Returns whether a rank computes with expert `model`. Under cfg=2 the rank of the negative prompt
// has nothing to compute where the expert's guidance is off.
bool computes_with(const JobFacts& facts, const RankPlacement& placement, int model);

class Denoiser final : private LatentProgram {
 public:
  explicit Denoiser(const Rank& rank, Graphs graphs = Graphs::kRecord);

  // Throws Error(kNonFinite) that names stage, step and block where a velocity is not finite, and
  // Error(kStopped) where before_turn says so. A checkpoint makes every rank but the root send 4
  // bytes per value that it updates, for the latent and for each tensor of the history.
  void run(const DenoisePlanConfig& config, Job& job);

  using LatentProgram::streaming;
  // The changes of the last run's steps and the errors of its audited ones, of all ranks together
  // on the root. Without a step cache they are empty.
  const std::vector<Change>& changes() const { return changes_; }
  const std::vector<Change>& errors() const { return errors_; }

  // The steps that the last run has skipped, in order, and whether it skips one that has begun.
  std::vector<int> skipped() const;
  bool skips(int step) const { return config_.steps[step].skipped; }

 private:
  bool run_turns();
  // Called before the plan of a turn is made, where the plan's first blocks run ahead
  // (DenoisePlanConfig::first_block_bytes): whether its step is skipped is decided here.
  void decide(int turn);
  bool begin_turn(int turn) override;
  void load(const Step& step) override { forwards_.load(step.pass.model, true); }
  void compute(const Step& step) override;
  void condition(const Pass&, Conditions& conditions) override {
    conditions.guidance = job_->facts.request.guidance_scale.value_or(conditions.guidance);
  }
  void moves(const Step& step, const Range& rows, const TensorView& latent,
             const TensorView& velocity) override;
  void moved(const Range& rows, const TensorView& latent) override;
  void taken(const Step& step) override;
  void decode(const Step& step) override;
  void enter(const Step& step) override;
  int zone(const Step& step) const override;
  int64_t joint_rows(const Pass& pass) override {
    return forwards_.prepared(pass).conditioning->joint_rows();
  }
  std::optional<BlockCache::Rows> added_rows(const Step& step) override;
  void write_before(const Step& step, const Forward& forward, const TensorView& x) override;
  Part part_of(const SlotId& slot, const Step& decode) override;
  Range frames_held(int /*segment*/, int rank) override {
    return placement_.clip_latents(rank, shape_[1], traits_.patch[0]);
  }
  TokenRanges reported(int segment, int rank) override {
    return sends_latent(rank) ? tokens_of(rank) : TokenRanges{{}, tokens()};
  }
  void enter_segment(int segment, const TensorView& latent) override;
  void cut_segment(int segment, const TensorView& latent, const TensorView& rows) override;
  std::vector<Range> solver_parts(const TensorView& rows) override;

  Sequence sequence() const { return {tokens(), grid_[0]}; }
  TokenRanges own() const { return tokens_of(placement_.rank()); }
  TokenRanges tokens_of(int rank) const {
    return placement_.tokens_of(rank, sequence(), job_->facts.patches);
  }
  int64_t hidden_rows(const Pass& pass) { return own().size() + joint_rows(pass); }
  TensorView alloc_hidden(const Pass& pass) {
    return arena_.alloc(DType::kF32, {hidden_rows(pass), traits_.width});
  }
  void skip(int step);
  void audit(const Step& step);
  void run_first_block(const Step& step);
  Change measure_first_block(const Pass& pass, const TensorView& before);
  std::array<Change, 2> summed(const Tensor& own, int turn);
  void gather_changes();
  bool sends_latent(int rank) const;
  void show_preview(int done);
  std::vector<Range> given_rows() const;
  void keep_given(const TensorView& latent);
  Tensor gather_on_root(const TensorView& own, const Tag& tag, int64_t channels);
  void gather_channels(const std::function<void(const TensorView& channel)>& see);

  DenoisePlanConfig config_{};  // that of the run; decide() marks its skipped steps
  int done_ = 0;                // steps
  Tensor given_;                // the rows of given_rows() as they begin; on the last stage alone
  std::optional<FirstBlock> first_block_{};  // on the first stage of one that decides by it
  std::optional<PreviewRows> preview_{};     // on the last stage of a job with previews
  PreviewSteps previewed_{};
  int skips_ = 0;
  std::vector<Change> changes_{}, errors_{};
  int gathered_ = 0;  // messages of gather_channels() in this run
};

}  // namespace weft
