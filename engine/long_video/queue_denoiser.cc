#include "engine/long_video/queue_denoiser.h"

#include <algorithm>

#include "engine/sampling/guidance.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

constexpr int kWindow = 16;  // turns that are planned at a time

bool is_context(const SlotVersion& version) {
  return version.slot >= kQueueContextSlot && version.slot < kQueueHiddenSlot;
}

// The number of a pass among those that keep keys in a slot.
int version_number(const QueuePlanConfig& config, const SlotVersion& keys) {
  const int per_turn = 2 * std::min(config.blocks, static_cast<int>(config.steps.size()));
  return keys.turn * per_turn + keys.order;
}

std::optional<int> keys_among(const QueuePlanConfig& config,
                              const std::vector<SlotVersion>& versions) {
  const auto found = std::ranges::find_if(versions, is_context);
  if (found == versions.end()) return std::nullopt;
  return version_number(config, *found);
}

}  // namespace

QueuePlanConfig queue_config(const RankPlacement& placement, const TransformerTraits& traits,
                             DType wire, const std::array<int64_t, 4>& shape,
                             int64_t block_frames) {
  const auto grid = traits.grid(shape[1], shape[2], shape[3]);
  CHECK(block_frames % traits.patch[0] == 0, "frames", block_frames);
  QueuePlanConfig config;
  config.layout = placement.layout();
  config.block_frames = block_frames / traits.patch[0];
  config.context_frames = grid[0] - config.block_frames;
  config.frame_tokens = grid[1] * grid[2];
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(wire));
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  return config;
}

// Forwards are not recorded as device graphs: they read the rows of another block each.
QueueDenoiser::QueueDenoiser(Stream& stream, Arena& arena, Experts& experts,
                             RankPlacement& placement, DType wire)
    : StagedProgram(stream, arena, placement, experts.traits(), wire),
      experts_(experts),
      forwards_(stream, arena, experts, placement, Graphs::kNone) {}

void QueueDenoiser::run(const QueuePlanConfig& config, QueueJob& job) {
  CHECK(config.first_turn == 0, "turn", config.first_turn,
        "needs the rows of the blocks before it");
  config_ = &config;
  job_ = &job;
  shape_ = job.shape;
  grid_ = traits_.grid(shape_[1], shape_[2], shape_[3]);
  slots.clear();
  histories_.clear();
  right_positions_.clear();
  forwards_.begin({.sampler = job.sampler,
                   .grid = grid_,
                   .text =
                       [&job](const Pass& pass) {
                         return pass.branch ? job.negative : job.prompts[pass.request];
                       },
                   .in_blocks = true});
  make_context();
  struct InnerMixer {
    RankPlacement& placement;
    ~InnerMixer() { placement.set_inner_mixer({}); }
  } const reset{placement_};
  placement_.set_inner_mixer([this] { return std::make_unique<BlockContextMixer>(*context_); });

  if (placement_.root()) {
    // Later blocks repeat the schedule of these.
    QueuePlanConfig some = config;
    some.blocks = std::min(
        config.blocks, std::max(config.first_turn, 1) + static_cast<int>(config.steps.size()) + 2);
    const std::optional<std::string> fault = check_plans(plan_queue(some), queue_rules(some));
    CHECK(!fault, *fault);
  }
  Interpreter interpreter(stream_, placement_.alone() ? nullptr : &placement_.communicator());
  int64_t planned = config.first_turn;
  const auto window = [&]() -> std::optional<Plan> {
    const int64_t begin = planned, end = config.turns().end;
    if (begin == end) return std::nullopt;
    planned = std::min(begin + kWindow, end);
    return plan_queue(config, {begin, planned}, placement_.rank());
  };
  const bool done = interpreter.run(window, *this);
  forwards_.end();
  slots.clear();
  context_bytes_ = context_->bytes();
  context_.reset();
  if (!done) throw Error(ErrorKind::kStopped, "stopped in denoise");
}

// Keeps keys of the blocks and branches that this rank computes.
void QueueDenoiser::make_context() {
  BlockRange layers = placement_.blocks(config_->layers[0]);
  for (int count : config_->layers) {
    layers.begin = std::min(layers.begin, placement_.blocks(count).begin);
    layers.end = std::max(layers.end, placement_.blocks(count).end);
  }
  std::vector<int> branches;
  for (int branch = 0; branch < 2; ++branch)
    if (placement_.computes(branch) &&
        std::ranges::any_of(config_->steps, [&](const auto& s) { return s.branches > branch; }))
      branches.push_back(branch);
  const int64_t first = config_->own(1).begin;
  context_.emplace(layers, std::move(branches), Range{first, 2 * first});
}

int QueueDenoiser::zone(const Step& step) const {
  const bool own_zone = step.kind == Step::Kind::kLoad || step.kind == Step::Kind::kDecode;
  return own_zone ? -1 : step.turn;
}

bool QueueDenoiser::begin_turn(int turn) {
  placement_.finish_turn();
  const Range blocks = config_->passes(turn);
  forwards_.forget([&](const Pass& prompt) {
    for (int64_t block = blocks.begin; block < blocks.end && prompt.branch == 0; ++block)
      if (config_->prompt(static_cast<int>(block)) == prompt.request) return false;
    return prompt.branch == 0;
  });
  const bool told = config_->control && turn > config_->first_turn;
  const int64_t word = told ? *static_cast<int64_t*>(slots[kQueueControlSlot].data) : 0;
  return !job_->before_turn || job_->before_turn(turn, word);
}

Range QueueDenoiser::rows_of(int block, int part) const {
  const Range rows = config_->own(block, part);
  const int64_t first = config_->own(block).begin;
  return {rows.begin - first, rows.end - first};
}

Tensor QueueDenoiser::block_tensor(int block, Device device) const {
  const int64_t frames = config_->own(block).size() / config_->frame_tokens * traits_.patch[0];
  return Tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]}, device);
}

void QueueDenoiser::enter(const Step& step) {
  const int block = step.pass.clip;
  Tensor noise = block_tensor(block, {});
  if (!is_dry_run(stream_)) job_->noise(block, noise);
  noise = on_device(stream_, std::move(noise));
  for (const SlotVersion& made : step.writes) {
    const Range rows = rows_of(block, part_of(made.slot));
    patchify(stream_, noise, traits_.patch, {{rows}, config_->own(block).size()},
             slots.make(made.slot, DType::kF32, rows.size(), traits_.row(), stream_.device()));
  }
  stream_.sync();
}

void QueueDenoiser::prepare(const Step& message) {
  if (message.kind == Step::Kind::kSend) return;
  const int slot = message.writes[0].slot;
  if (message.payload == Payload::kControl)
    slots.make(slot, DType::kI64, 1, 1);
  else if (message.payload == Payload::kHidden)
    slots.make(slot, dtype_, message.tokens.size(), traits_.width, stream_.device());
  else
    slots.make(slot, DType::kF32, message.tokens.size(), traits_.row(), stream_.device());
}

const Rope& QueueDenoiser::right_positions(const Pass& pass) {
  const auto [found, fresh] = right_positions_.try_emplace(pass.model);
  if (fresh)
    found->second = on_device(
        stream_,
        forwards_.expert(pass).rope({config_->context_frames, grid_[1], grid_[2]}, {grid_[0], 0, 0},
                                    *forwards_.prepared(pass).conditioning));
  return found->second;
}

void QueueDenoiser::compute(const Step& step) {
  BlockContext::Use use{.reads = keys_among(*config_, step.reads),
                        .keeps = keys_among(*config_, step.writes)};
  if (forwards_.prepared(step.pass).conditioning->joint_rows() > 0)
    throw Error(ErrorKind::kUsage,
                "--method queue: this model joins the prompt's rows to those of the latent; legal "
                "are models of video, which do not");
  if (use.reads) use.rope = &right_positions(step.pass);
  context_->begin(use);
  forwards_.run(step, {}, [&](const Forward& forward) { run_blocks(step, forward); });
}

// The rows of a forward: the last frames of the block before, then the block's own.
TensorView QueueDenoiser::latent_rows(const Step& step) {
  const int block = step.pass.clip, own_part = placement_.mesh().sequence_index(placement_.rank());
  const Range rows = config_->part(own_part), before = prefix_tokens(*config_, own_part);
  const TensorView in = arena_.alloc(DType::kF32, {rows.size(), traits_.row()});
  for (const SlotVersion& version : step.reads) {
    if (version.slot < kQueueBlockSlot) continue;
    const int part = part_of(version.slot);
    const bool own = version.slot == config_->block_slot(block, part);
    const Range held = config_->own(own ? block : block - 1, part);
    const Range taken =
        own ? held : Range{std::max(held.begin, before.begin), std::min(held.end, before.end)};
    const int64_t at = own ? taken.begin - rows.begin : taken.begin - before.begin;
    copy(stream_, slots[version.slot].slice(0, taken.begin - held.begin, taken.size()),
         in.slice(0, at, taken.size()));
  }
  return in;
}

// A forward predicts the velocity of the frames before, too; nobody reads it.
TensorView QueueDenoiser::velocity_rows(const Step& step) {
  Tensor& velocity = velocities_[step.pass.branch];
  const int part = placement_.mesh().sequence_index(placement_.rank());
  const Range rows = config_->part(part), own = config_->own(step.pass.clip, part);
  if (!velocity) velocity = Tensor(DType::kF32, {rows.size(), traits_.row()}, stream_.device());
  for (const SlotVersion& made : step.writes)
    if (!is_context(made))
      slots.lend(made.slot, velocity.view().slice(0, own.begin - rows.begin, own.size()));
  return velocity;
}

void QueueDenoiser::decide(const Step& step) {
  if (step.writes.empty()) return;
  const int64_t word = job_->decide ? job_->decide(step.turn) : 0;
  *static_cast<int64_t*>(slots.make(kQueueControlSlot, DType::kI64, 1, 1).data) = word;
}

void QueueDenoiser::update(const Step& step) {
  const auto& touched = step.writes.empty() ? step.reads : step.writes;
  if (touched[0].slot == kQueueControlSlot) return decide(step);
  const Arena::Scope scope(arena_);
  const TensorView& latent = slots[step.reads[0].slot];
  const TensorView& positive = slots[kQueueVelocitySlot];
  const TensorView velocity = arena_.alloc(DType::kF32, positive.shape());
  copy(stream_, positive, velocity);
  guide(stream_, experts_.family(), job_->guidance[step.pass.model],
        step.reads.size() > 2 ? slots[kQueueVelocitySlot + 1] : TensorView(), velocity);
  const int block = step.pass.clip, part = part_of(step.reads[0].slot);
  if (job_->on_update) job_->on_update(step.pass, rows_of(block, part), velocity);
  const auto history = histories_.try_emplace(block, latent.count(), stream_.device()).first;
  job_->sampler.step(stream_, arena_, step.pass.step, velocity, latent, history->second);
  if (first_non_finite(stream_, latent) >= 0)
    forwards_.report_non_finite(step.pass, "the latent behind guidance and solver");
  if (step.pass.step + 1 == job_->sampler.steps()) histories_.erase(history);
}

void QueueDenoiser::decode(const Step& step) {
  const int block = step.pass.clip;
  const Tensor latent = block_tensor(block, stream_.device());
  for (const SlotVersion& version : step.reads)
    unpatchify(stream_, slots[version.slot], traits_.patch,
               {{rows_of(block, part_of(version.slot))}, config_->own(block).size()}, latent);
  stream_.sync();
  if (job_->decode) job_->decode(block, latent);
}

}  // namespace weft
