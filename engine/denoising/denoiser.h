#pragma once
// Denoiser: the steps of a generation on one rank. Every rank computes, guides and steps only the
// rows of the latent that it owns.
//
// Memory of a rank that owns n of the latent's tokens, with r bytes per token: its last pipeline
// stage holds n r for the latent, n r for each branch's velocity and 3 n r for the solver; its
// first stage n r for the latent; a stage in between none. A step cache adds
// a BlockCache on the last stage, and first-block a FirstBlock on the first stage and the rows
// behind that block on both. Before decoding, when the solver's part
// is released, a rank holds the whole latent, and once more as rows where other ranks own some.
//
// No rank holds the latent of all F frames where there are clips: it begins with those of its
// clip. While decoding, a first and a last stage hold n r; a rank that decodes holds one frame, and
// the tokens of other ranks of two. Job::finished brings the root one of the latent's C channels at
// a time. A checkpoint does gather the whole latent, and the history, on the root.
#include <array>
#include <functional>
#include <optional>

#include "engine/denoising/first_block.h"
#include "engine/denoising/latent_program.h"
#include "engine/job/job_facts.h"
#include "engine/preview/preview_rows.h"

namespace weft {

// Describes a job to plan_denoise: its steps, the replica's layout and the sizes of its messages.
// `motion` says that the forwards read the pictures before a chunk (Job::motion).
DenoisePlanConfig plan_config(const JobFacts& facts, const Components& parts,
                              const RankPlacement& placement, bool motion);

// Returns whether a rank computes with expert `model`. Under cfg=2 the rank of the negative prompt
// has nothing to compute where the expert's guidance is off.
bool computes_with(const JobFacts& facts, const RankPlacement& placement, int model);

// The previews of a job: how they are made, and who sees them. It must be the same on all ranks.
struct PreviewJob {
  const PreviewFit& fit;
  int every = 1;  // steps
  // Called on the root with the steps done and the colours [3, F, h, w] f32 of the latent that they
  // predict, in host memory, in [-1, 1] but for overshoot.
  std::function<void(int done, const TensorView& colours)> show{};
};

struct Job {
  const JobFacts& facts;
  // `embeds` are on the stream's device.
  std::array<TensorView, 2> embeds;    // per branch [length, d] f32, the prompt's rows
  std::array<TensorView, 2> pooled{};  // per branch [d] f32, its vector, where the model reads one
  // The noise or the resumed latent [C, F, H, W] f32, on the stream's device: the frames of this
  // rank's clip (RankPlacement::clip_of). It is released once the ranks have their rows of it.
  Tensor latent;
  // The solver's history of a resumed job, in Sampler::history's order, on the device; released
  // like the latent. Empty when the job starts at step 0.
  std::vector<Tensor> history{};
  // Given frames of the latent stay as they begin. Only without clips.
  PictureViews pictures{};
  // For a model that follows a sound: the signal per branch [frames of tokens, signal_columns] f32,
  // and the latents before the clip (Conditions::motion), or empty; on the stream's device.
  std::array<TensorView, 2> signal{};
  TensorView motion{};
  // Sees a step's velocity behind guidance, of this rank's rows `own` or of those of one patch
  // after the other.
  std::function<void(int step, const Range& own, const TensorView& velocity)> on_velocity{};
  std::function<void(int step)> on_update{};  // called after the update of `step`
  // Sees, and may alter, the change of a branch that this rank has measured behind the first block.
  std::function<void(const Pass& pass, Change& change)> on_first_block{};
  // Called with clips, on all ranks, before the first frame is decoded. each(see) calls `see` on
  // the root with every channel [F, H, W] f32 of the final latent, in order, in host memory. All
  // ranks call `each`, the same number of times.
  using Channels = std::function<void(const std::function<void(const TensorView& channel)>& see)>;
  std::function<void(const Channels& each)> finished{};
  // Runs the plan's kDecode with the final latent [C, F, H, W]. With clips it is called for the
  // frames of one token after another, in order, on all ranks: where a rank does not decode
  // (receives_frames) the latent has no data.
  std::function<void(const TensorView& latent)> decode{};
  // Called before every step with the number of steps done. It must answer the same on all ranks.
  std::function<StepAction(int done)> before_step{};
  // Where the cache decides while the job runs: the steps that it has skipped so far. The run
  // begins with those before its first step, and adds to them.
  std::vector<int>* skipped = nullptr;
  // Makes previews, which change no bit of the result. Each costs a linear map of the rows that a
  // rank owns to 3 channels. The last stage's ranks but the root send 4 bytes per value of these.
  const PreviewJob* preview = nullptr;
  int cache_audit = 0;  // every so many skipped steps one is audited; 0: none
  std::function<void(int done, Snapshot)> keep{};  // called on the root when the answer is kKeep
};

class Denoiser final : private LatentProgram {
 public:
  explicit Denoiser(const Rank& rank, Graphs graphs = Graphs::kRecord);

  // Throws Error(kNonFinite) that names stage, step and block where a velocity is not finite, and
  // Error(kStopped) where before_step says so. A checkpoint makes every rank but the root send 4
  // bytes per value that it updates, for the latent and for each tensor of the history.
  void run(const DenoisePlanConfig& config, Job& job);

  // The changes of the last run's steps and the errors of its audited ones, of all ranks together
  // on the root. Without a step cache they are empty.
  const std::vector<Change>& changes() const { return changes_; }
  const std::vector<Change>& errors() const { return errors_; }

  // The steps that the last run has skipped, in order, and whether it skips one that has begun.
  std::vector<int> skipped() const;
  bool skips(int step) const { return config_.steps[step].skipped; }

  // Weight offload of the last run's forwards.
  const OffloadTotals& streaming() const { return forwards_.streaming(); }

 private:
  void begun() override;
  void decide(int turn) override;
  bool begin_turn(int turn) override;
  void load(const Step& step) override { forwards_.load(step.pass.model, true); }
  void compute(const Step& step) override;
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
  TokenRanges reported(int /*segment*/, int rank) override {
    return sends_latent(rank) ? tokens_of(rank) : TokenRanges{{}, tokens()};
  }
  void cut_segment(int /*segment*/, const TensorView& latent, const TensorView& rows) override {
    cut(latent, rows);
  }
  std::vector<Range> solver_parts(const TensorView& /*rows*/) override { return patches(); }

  bool computes(int branch) const;
  int64_t hidden_rows(const Pass& pass) { return own().size() + joint_rows(pass); }
  TensorView alloc_hidden(const Pass& pass) {
    return arena_.alloc(DType::kF32, {hidden_rows(pass), traits_.width});
  }
  void skip(int step);
  void audit(const Step& step);
  void run_first_block(const Step& step);
  Change measure_first_block(const Pass& pass, const TensorView& before);
  std::array<Change, 2> summed(const Tensor& own, int turn);
  void forget_caches();
  void gather_changes();
  // The parts of this rank's rows that the solver steps alone: patches, or all rows.
  std::vector<Range> patches() const;
  bool sends_latent(int rank) const;
  void show_preview(int done);
  std::vector<Range> given_rows() const;
  void keep_given(const TensorView& latent);
  Tensor gather_on_root(const TensorView& own_rows, const Tag& tag, int64_t channels);
  void gather_channels(const std::function<void(const TensorView& channel)>& see);

  DenoisePlanConfig config_{};  // that of the run; decide() marks its skipped steps
  Job* job_ = nullptr;
  int done_ = 0;   // steps
  Tensor given_;  // the rows of given_rows() as they begin; on the last stage alone
  std::optional<FirstBlock> first_block_{};  // on the first stage of one that decides by it
  std::optional<PreviewRows> preview_{};     // on the last stage of a job with previews
  PreviewSteps previewed_{};
  int skips_ = 0;
  std::vector<Change> changes_{}, errors_{};
  int gathered_ = 0;  // messages of gather_channels() in this run
};

}  // namespace weft
