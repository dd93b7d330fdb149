#pragma once
// StreamDenoiser: the segments of a stream on one rank (parallel/schedule/stream_plan.h). The first
// stage of a group of steps reads the rows of a segment, the last one updates them, and one rank
// gets the segments that are done.
//
// The first rank's host decides what enters: how many frames the next segment has, the signal that
// it follows, and whether it is the last one. Every other rank reads this word from the first rows
// of the segment that it gets. A segment of no frames is hollow: it keeps the pipeline moving, is
// not numbered and changes nothing.
//
// Memory of a rank beside its weights: its keys (parallel/methods/causal_window.h), the rows of the
// plan's slots, the velocity of a segment and what is drawn for one. Nothing depends on the length
// of the stream.
#include <array>
#include <optional>
#include <vector>

#include "engine/latents/latent_program.h"
#include "parallel/methods/causal_window.h"
#include "parallel/schedule/stream_plan.h"

namespace weft {

// A stream leaves this after its last segment, for a run that goes on with it.
struct StreamState {
  Segment following{};  // the next segment with frames; its epoch says nothing
  WindowStore keys{};
};

// StreamSource: the part of a stream's job that others do not have. The job's window is [C, P, H,
// W], the latent of the largest segment. Its solver has no history, and its motion
// (Conditions::motion) are the latents before the stream.
struct StreamSource {
  int64_t window_frames = 0;  // latent frames that a segment sees, its own among them
  TensorView sink{};          // [C, F, H, W] f32, on the stream's device; or empty
  // The rows of the motion (TransformerModel::motion_rows) are joint rows of the sink, and stay
  // where they are in time.
  int64_t motion_rows = 0;
  SinkPosition sink_position{};  // in frames of tokens
  KeptRows kept = KeptRows::kCompute;
  // A rank's plan of some turns. A test plants faults in it.
  Plan (*plan)(const StreamPlanConfig& config, const Range& turns, int rank) = plan_stream;
  // All ranks begin with it, and leave it after the last segment: layers and steps can move to
  // other ranks between two runs. Not legal where the sink is swapped.
  StreamState* state = nullptr;
};

// Describes the stream of a job to plan_stream: all but the segments, the swap and the decoder. A
// rank sends hidden rows in the dtype `wire`.
StreamPlanConfig stream_config(const RankPlacement& placement, const TransformerTraits& traits,
                               DType wire, const JobFacts& facts, const StreamSource& source);

class StreamDenoiser final : private LatentProgram {
 public:
  StreamDenoiser(const Rank& rank, DType wire);

  // Throws Error(kNonFinite) that names segment, step and place where a velocity is not finite.
  void run(const StreamPlanConfig& config, Job& job, StreamSource& source);

  size_t window_bytes() const { return window_bytes_; }  // kept keys of the last run

 private:
  // A segment of the plan, from when this rank learns of it.
  struct Known {
    int segment = -1;  // of the plan, hollow ones counted
    Segment of{};
    bool last = false;
    Tensor signal{};  // [frames of tokens, signal_columns]
  };
  int rank() const { return world_ ? world_->rank() : placement_.rank(); }
  bool computes() const { return rank() < config_.layout.ranks(); }
  CausalWindowShape window_shape() const;
  std::optional<Plan> next_window(int64_t& planned);

  Known& known(int segment);
  void decide(int segment);
  NextSegment asked(int segment);
  void learn(int segment, const NextSegment& next, const TensorView& signal);
  TensorView word_of(const Pass& pass, const TensorView& rows) const;
  void read_word(const Pass& pass, const TensorView& rows);
  void write_word(const Pass& pass, const TensorView& rows);
  TensorView part(const Tensor& whole, int64_t frames) const;
  // The rows that a pass has.
  int64_t rows_of(const Pass& pass);

  bool begin_pass(const Step& step) override;
  void begin_sink(const Pass& pass);
  void begin_segment(const Pass& pass);
  void enter(const Step& step) override;
  void word(const Step& step) override { slots.make(step.writes[0].slot, DType::kI64, 1, 1); }
  void enter_sinks(const Step& step);
  void prepare(const Step& message) override;
  int64_t message_rows(const Step& message) override {
    return config_.rows(message.pass, message.tokens, message.payload);
  }
  void received(const Step& message) override;
  void run_blocks(const Step& step, const Forward& forward) override;
  int64_t forward_rows(const Step& step) override { return rows_of(step.pass); }
  TensorView latent_rows(const Step& step) override {
    return slots[step.reads[0].slot].slice(0, 0, rows_of(step.pass));
  }
  TensorView velocity_rows(const Step& step) override;
  void update(const Step& step) override;
  Part part_of(const SlotId& slot, const Step& decode) override {
    const int64_t count = rows_of(decode.pass);
    return {slots[slot].slice(0, 0, count), TokenRanges::all(count)};
  }
  TensorView updated_rows(const Step& step) override { return latent_rows(step); }
  TensorView velocity_of(const Step& step) override {
    return slots[velocity_slot(0)].slice(0, 0, rows_of(step.pass));
  }
  void decode(const Step& step) override;
  int64_t joint_rows(const Pass& pass) override {
    return is_sink(pass) ? config_.sink_joint_rows : 0;
  }
  void condition(const Pass& pass, Conditions& conditions) override {
    conditions.tokens_are_reference = is_sink(pass);
    if (!is_sink(pass)) conditions.motion = {};
  }
  const Rope* positions(const Pass&) override { return &queries_; }
  float timestep(const Pass& pass) override {
    return is_sink(pass) ? 0 : LatentProgram::timestep(pass);  // of clean latents
  }
  TensorView signal(const Pass& pass) override;
  const TensorView& latent_slot(const SlotId& slot, int64_t rows) {
    return slots.make(slot, DType::kF32, rows, traits_.row(), stream_.device());
  }
  bool is_sink(const Pass& pass) const { return pass.micro == StreamPlanConfig::kSinkPass; }
  bool sees_second_sink(int64_t number) const {
    return config_.swaps() && number >= config_.swap_segment;
  }

  Communicator* const world_;
  std::optional<Communicator> ulysses_group_;   // the ranks that split the tokens of its forwards
  std::optional<Communicator> entering_group_;  // the ranks of its stage that split its forwards
  StreamPlanConfig config_;
  StreamSource* source_ = nullptr;
  std::vector<Known> known_;
  int learned_ = 0;    // segments of the plan
  int last_ = 0;       // all segments from this one on are hollow
  Segment following_;  // the next one with frames
  Tensor word_;        // of the segment that enters, in host memory
  Tensor drawn_;       // [C, P, H, W], of one segment at a time
  Tensor silence_;     // the signal of a sink
  std::optional<CausalWindow> window_;
  size_t window_bytes_ = 0;
  Rope queries_, keys_, sink_keys_, sink_joint_;  // the positions of the present pass
};

}  // namespace weft
