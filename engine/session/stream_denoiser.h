#pragma once
// StreamDenoiser: the blocks of a stream on one rank (parallel/schedule/stream_plan.h). The first
// stage of a group of steps reads the rows of a block, the last one updates them, and one rank gets
// the blocks that are done.
//
// Memory of a rank beside its weights: its keys (parallel/methods/causal_window.h), the rows of the
// plan's slots and the velocity of a block. Nothing depends on the length of the stream.
#include <array>
#include <functional>
#include <optional>

#include "engine/denoising/forwards.h"
#include "parallel/methods/causal_window.h"
#include "parallel/schedule/stream_plan.h"

namespace weft {

struct StreamJob {
  const Sampler& sampler;        // of a solver without a history
  std::array<int64_t, 4> shape;  // [C, P, H, W]: the latent of a block
  int64_t window_frames = 0;     // latent frames that a block sees, its own among them
  TensorView prompt;             // rows [length, d] f32, on the stream's device
  TensorView sink;               // [C, F, H, W] f32, on the stream's device; or empty
  SinkPosition sink_position{};  // in frames of tokens
  // Fills in the noise of a block [C, P, H, W] f32, in host memory. Every rank draws what it needs.
  std::function<void(int block, const TensorView& noise)> noise;
  // Called on the decoder for every block, in order, with its final latent [C, P, H, W] f32, on the
  // stream's device.
  std::function<void(int block, const TensorView& latent)> decode;
  // Called on the rank that updates a block with its velocity [n, row] f32.
  std::function<void(const Pass& pass, const TensorView& velocity)> on_update{};
};

// Describes the stream of a job to plan_stream: all but the blocks, the swap and the decoder. A
// rank sends hidden rows in the dtype `wire`.
StreamPlanConfig stream_config(const RankPlacement& placement, const TransformerTraits& traits,
                               DType wire, const StreamJob& job);

class StreamDenoiser final : private StagedProgram {
 public:
  StreamDenoiser(Stream& stream, Arena& arena, Experts& experts, RankPlacement& placement,
                 DType wire);

  // Throws Error(kNonFinite) that names block, step and place where a velocity is not finite.
  void run(const StreamPlanConfig& config, StreamJob& job);

  size_t window_bytes() const { return window_bytes_; }  // kept keys of the last run

 private:
  CausalWindowShape window_shape() const;
  void begin_pass(const Pass& pass);
  void begin_block(const Pass& pass);
  void load(const Step& step) override { forwards_.load(step.pass.model, false); }
  void enter(const Step& step) override;
  void prepare(const Step& message) override;
  void compute(const Step& step) override;
  void update(const Step& step) override;
  void decode(const Step& step) override;
  int64_t joint_rows(const Pass&) override { return 0; }
  TensorView velocity_rows(const Step& step) override;
  const TensorView& latent_slot(int slot, int64_t tokens) {
    return slots.make(slot, DType::kF32, tokens, traits_.row(), stream_.device());
  }
  bool is_sink(const Pass& pass) const { return pass.micro == StreamPlanConfig::kSinkPass; }
  // The number of the sink that a block sees.
  int sink_of(int block) const { return config_->swaps() && block >= config_->swap_block; }

  Experts& experts_;
  Forwards forwards_;
  const StreamPlanConfig* config_ = nullptr;
  StreamJob* job_ = nullptr;
  std::optional<CausalWindow> window_;
  size_t window_bytes_ = 0;
  Rope queries_, keys_, sink_keys_;  // the positions of the present pass
};

}  // namespace weft
