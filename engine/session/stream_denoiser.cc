#include "engine/session/stream_denoiser.h"

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

constexpr int kWindow = 64;  // turns that are planned at a time
constexpr float kSinkTimestep = 0;

}  // namespace

StreamPlanConfig stream_config(const RankPlacement& placement, const TransformerTraits& traits,
                               DType wire, const StreamJob& job) {
  const auto grid = traits.grid(job.shape[1], job.shape[2], job.shape[3]);
  StreamPlanConfig config;
  config.layout = placement.layout();
  config.steps = job.sampler.steps();
  config.block_frames = grid[0];
  config.frame_tokens = grid[1] * grid[2];
  config.sink_frames = job.sink ? job.sink[1] / traits.patch[0] : 0;
  config.layers = traits.blocks;
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(wire));
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  return config;
}

// Forwards are not recorded as device graphs: each writes other slots of the window.
StreamDenoiser::StreamDenoiser(Stream& stream, Arena& arena, Experts& experts,
                               RankPlacement& placement, DType wire)
    : StagedProgram(stream, arena, placement, experts.traits(), wire),
      experts_(experts),
      forwards_(stream, arena, experts, placement, Graphs::kNone) {}

CausalWindowShape StreamDenoiser::window_shape() const {
  return {.layers = placement_.blocks(config_->layers),
          .steps = config_->group(placement_.mesh().at(Axis::kStep, placement_.rank())),
          .frames = job_->window_frames / traits_.patch[0],
          .frame_tokens = config_->frame_tokens,
          .sink_tokens = config_->sink_tokens().size(),
          .sinks = config_->swaps() ? 2 : 1};
}

void StreamDenoiser::run(const StreamPlanConfig& config, StreamJob& job) {
  if (!job.sampler.history(SamplerState(0)).empty())
    throw Error(ErrorKind::kUsage,
                "the solver is " + std::string(to_string(job.sampler.config().kind)) +
                    ", which steps with what earlier steps have left; legal for a stream: euler");
  config_ = &config;
  job_ = &job;
  shape_ = job.shape;
  grid_ = traits_.grid(shape_[1], shape_[2], shape_[3]);
  slots.clear();
  forwards_.begin({.sampler = job.sampler,
                   .grid = grid_,
                   .text = [&job](const Pass&) { return job.prompt; },
                   .in_blocks = true,
                   .rope = [this](const Pass&) -> const Rope& { return queries_; },
                   .timestep =
                       [this](const Pass& pass) {
                         return is_sink(pass) ? kSinkTimestep
                                              : job_->sampler.timesteps()[pass.step];
                       }});
  window_.emplace(window_shape());
  struct InnerMixer {
    RankPlacement& placement;
    ~InnerMixer() { placement.set_inner_mixer({}); }
  } const reset{placement_};
  placement_.set_inner_mixer([this] { return std::make_unique<CausalWindowMixer>(*window_); });

  Interpreter interpreter(stream_, placement_.alone() ? nullptr : &placement_.communicator());
  int64_t planned = 0;
  interpreter.run(
      [&]() -> std::optional<Plan> {
        const int64_t begin = planned, end = config.turns().end;
        if (begin == end) return std::nullopt;
        planned = std::min(begin + kWindow, end);
        return plan_stream(config, {begin, planned}, placement_.rank());
      },
      *this);
  forwards_.end();
  slots.clear();
  window_bytes_ = window_->bytes();
  window_.reset();
}

void StreamDenoiser::enter(const Step& step) {
  if (step.writes[0].slot >= config_->permit_slot(0, 0) &&
      step.writes[0].slot < config_->block_slot(0)) {
    slots.make(step.writes[0].slot, DType::kI64, 1, 1);
    return;
  }
  for (const SlotVersion& made : step.writes) {
    if (is_sink(step.pass)) {
      const TensorView& rows = latent_slot(made.slot, config_->sink_tokens().size());
      if (step.reads.empty())
        patchify(stream_, job_->sink, traits_.patch, TokenRanges::all(rows[0]), rows);
      else
        copy(stream_, slots[step.reads[0].slot].slice(0, 0, rows[0]), rows);
      continue;
    }
    Tensor noise(DType::kF32, shape_);
    if (!is_dry_run(stream_)) job_->noise(step.pass.clip, noise);
    noise = on_device(stream_, std::move(noise));
    patchify(stream_, noise, traits_.patch, TokenRanges::all(tokens()),
             latent_slot(made.slot, tokens()));
    stream_.sync();
  }
}

void StreamDenoiser::prepare(const Step& message) {
  if (message.kind == Step::Kind::kSend) return;
  const int slot = message.writes[0].slot;
  if (message.payload == Payload::kControl)
    slots.make(slot, DType::kI64, 1, 1);
  else if (message.payload == Payload::kHidden)
    slots.make(slot, dtype_, message.tokens.size(), traits_.width, stream_.device());
  else
    latent_slot(slot, message.tokens.size());
}

// Tells the window what the pass does, and finds its positions.
void StreamDenoiser::begin_block(const Pass& pass) {
  const Transformer& expert = forwards_.expert(pass);
  const Conditioning& conditioning = *forwards_.prepared(pass).conditioning;
  const auto positions = [&](int64_t frames, int64_t first) {
    return on_device(stream_,
                     expert.rope({frames, grid_[1], grid_[2]}, {first, 0, 0}, conditioning));
  };
  const Range frames{pass.clip * grid_[0], (pass.clip + 1) * grid_[0]};
  const Range seen = window_->seen(frames);
  const std::vector<double> slot_positions = window_->slot_positions(frames);
  queries_ = positions(grid_[0], frames.begin - seen.begin);
  keys_ = with_frame_positions(stream_, positions(seen.size(), 0), slot_positions);
  if (config_->sink_frames > 0)
    sink_keys_ =
        positions(config_->sink_frames,
                  sink_frame(job_->sink_position, pass.clip, pass.step, frames.begin) - seen.begin);
  window_->begin({.step = pass.step,
                  .frames = frames,
                  .keys = &keys_,
                  .sink = sink_of(pass.clip),
                  .sink_keys = &sink_keys_});
}

void StreamDenoiser::begin_pass(const Pass& pass) {
  if (!is_sink(pass)) return begin_block(pass);
  queries_ =
      on_device(stream_, forwards_.expert(pass).rope({config_->sink_frames, grid_[1], grid_[2]}, {},
                                                     *forwards_.prepared(pass).conditioning));
  window_->begin_sink(sink_of(pass.clip));
}

void StreamDenoiser::compute(const Step& step) {
  if (forwards_.prepared(step.pass).conditioning->joint_rows() > 0)
    throw Error(ErrorKind::kUsage,
                "a stream: this model joins the prompt's rows to those of the latent; legal are "
                "models of video, which do not");
  begin_pass(step.pass);
  forwards_.run(step, {}, [&](const Forward& forward) { run_blocks(step, forward); });
}

// Nobody reads the velocity of a sink.
TensorView StreamDenoiser::velocity_rows(const Step& step) {
  return step.writes.empty() ? arena_.alloc(DType::kF32, {step.tokens.size(), traits_.row()})
                             : latent_slot(step.writes[0].slot, step.tokens.size());
}

void StreamDenoiser::update(const Step& step) {
  const TensorView& before = slots[step.reads[0].slot];
  const TensorView& velocity = slots[config_->velocity_slot()];
  if (job_->on_update) job_->on_update(step.pass, velocity);
  SamplerState state(before.count(), stream_.device());
  job_->sampler.step(stream_, arena_, step.pass.step, velocity, before, state);
  if (first_non_finite(stream_, before) >= 0)
    forwards_.report_non_finite(step.pass, "the latent behind the solver");
}

void StreamDenoiser::decode(const Step& step) {
  const Tensor latent(DType::kF32, shape_, stream_.device());
  unpatchify(stream_, slots[step.reads[0].slot], traits_.patch, TokenRanges::all(tokens()), latent);
  stream_.sync();
  if (job_->decode) job_->decode(step.pass.clip, latent);
}

}  // namespace weft
