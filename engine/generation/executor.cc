#include "engine/generation/executor.h"

#include <chrono>
#include <cstdio>

#include "engine/sampling/guidance.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

// Tag::hop of a step's latent messages: 0 returns the latent to the first pipeline stage, 1
// gathers it before decoding, and 2 onwards gather the tensors of a checkpoint.
constexpr int kGatheredHop = 1, kFirstKeptHop = 2;

}  // namespace

double guidance_of(const Request& request, int model) {
  return model ? *request.guidance_scale_2 : *request.guidance_scale;
}

DenoisePlanConfig plan_config(const Request& request, const Sampler& sampler,
                              const Components& parts, const RankPlacement& placement,
                              int64_t tokens) {
  const ModelDirectory& directory = parts.directory();
  const TransformerTraits& traits = directory.expert(0).traits();
  DenoisePlanConfig config;
  config.layout = placement.layout();
  config.tokens = placement.token_counts(tokens);
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(parts.dtype()));
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  const double boundary = directory.boundary_ratio.value_or(0) * sampler.config().train_timesteps;
  for (float timestep : sampler.timesteps()) {
    const int model = directory.experts() > 1 && timestep < boundary ? 1 : 0;
    config.steps.push_back({model, guidance_branches(guidance_of(request, model))});
  }
  for (int model = 0; model < directory.experts(); ++model) {
    config.blocks.push_back(directory.expert(model).traits().blocks);
  }
  return config;
}

Executor::Executor(Stream& stream, Arena& arena, Experts& experts, RankPlacement& placement,
                   Graphs graphs)
    : stream_(stream), arena_(arena), experts_(experts), placement_(placement), graphs_(graphs) {}

void Executor::run(const Plan& plan, Job& job) {
  history_.reset();
  recorded_ = {};
  streaming_ = {};
  std::optional<ZoneScope> zone;  // the step's; loading and decoding are zones of their own
  int open = -1, at = job.first_step - 1;
  for (const Step& step : plan.steps) {
    const bool in_step = step.kind != Step::Kind::kLoad && step.kind != Step::Kind::kDecode;
    const int wanted = in_step ? step.pass.step : -1;
    if (at < step.pass.step || wanted != open) zone.reset();
    while (at < step.pass.step) before_step(++at, job);  // this rank may skip whole steps
    if (wanted != open) {
      if (wanted >= 0) zone.emplace(Zone::kStep, wanted);
      open = wanted;
    }
    walk(step, job);
  }
}

void Executor::walk(const Step& step, Job& job) {
  switch (step.kind) {
    case Step::Kind::kLoad:
      load(job, step.pass.model);
      break;
    case Step::Kind::kCompute:
      compute(step, job);
      break;
    case Step::Kind::kUpdate:
      update(step, job);
      break;
    case Step::Kind::kSend:
      send(step, job);
      break;
    case Step::Kind::kReceive:
      receive(step, job);
      break;
    case Step::Kind::kWait:
      wait(step);
      break;
    case Step::Kind::kDecode:
      CHECK(sending_.empty(), "a send is still pending");
      placement_.finish_turn();
      wires_.clear();
      recorded_ = {};
      prepared_ = {};  // decoding needs only the latents
      velocities_ = {};
      history_.reset();
      release_expert();
      experts_.done_with_experts();
      job.decode();
      break;
    default:
      CHECK(false, "no plan of a generation has", to_string(step));
  }
}

void Executor::before_step(int done, Job& job) {
  placement_.finish_turn();
  const StepAction what = job.before_step ? job.before_step(done) : StepAction::kContinue;
  if (what == StepAction::kKeep || what == StepAction::kKeepAndStop) {
    Snapshot snapshot = gather(done, job);
    if (placement_.root()) job.keep(done, std::move(snapshot));
  }
  if (what == StepAction::kContinue || what == StepAction::kKeep) return;
  // Every rank stops at this boundary, so all pending sends will be received.
  for (auto& [slot, sends] : sending_)
    for (Communicator::Pending& send : sends) placement_.communicator().wait(send);
  sending_.clear();
  throw Error(ErrorKind::kStopped, "stopped in denoise after step " + std::to_string(done) +
                                       " of " + std::to_string(job.sampler.steps()));
}

// Gathers the newest latent and history on the root. For each sequence index they are on the first
// rank of the last pipeline stage.
Snapshot Executor::gather(int done, const Job& job) {
  const auto patch = expert_->traits().patch;
  const int64_t row = expert_->traits().row();
  std::vector<std::pair<std::string, TensorView>> parts{{"", job.latent}};
  const SamplerState none(placement_.root() && !history_ ? job.latent.count() : 0,
                          stream_.device());
  for (const auto& [name, view] : job.sampler.history(history_ ? *history_ : none))
    parts.emplace_back(name, view);
  Snapshot out;
  for (size_t k = 0; k < parts.size(); ++k) {
    const auto& [name, view] = parts[k];
    const Tag tag{.kind = Payload::kLatent,
                  .pass = {.step = done},
                  .hop = kFirstKeptHop + static_cast<int>(k)};
    const TensorView shaped(view.data, view.dtype, job.latent.shape(), view.device);
    Tensor whole;
    if (placement_.root()) whole = Tensor(DType::kF32, job.latent.shape(), stream_.device());
    for (int index = 0; index < placement_.layout().sequence(); ++index) {
      const int from = placement_.rank_of(placement_.layout()[Axis::kLayers] - 1, index);
      if (from != placement_.rank() && !placement_.root()) continue;
      const Arena::Scope scope(arena_);
      const TokenRanges tokens = placement_.tokens_of(from, this->tokens());
      const TensorView rows = arena_.alloc(DType::kF32, {tokens.size(), row});
      if (from == placement_.rank()) patchify(stream_, shaped, patch, tokens, rows);
      if (from != 0 && placement_.root())
        placement_.communicator().receive(stream_, from, tag, rows);
      if (from != 0 && !placement_.root()) placement_.communicator().send(stream_, 0, tag, rows);
      if (placement_.root()) unpatchify(stream_, rows, patch, tokens, whole);
    }
    whole = on_host(stream_, std::move(whole));
    if (k == 0)
      out.latent = std::move(whole);
    else
      out.history.emplace_back(name, std::move(whole));
  }
  return out;
}

void Executor::load(const Job& job, int model) {
  recorded_ = {};
  prepared_ = {};  // prompts are prepared for one expert
  release_expert();
  expert_ = &experts_.expert(stream_, model);
  outside_forwards_ = expert_->streamed();
  model_ = model;
  grid_ = expert_->traits().grid(job.latent[1], job.latent[2], job.latent[3]);
}

void Executor::release_expert() {
  if (expert_ && expert_->streamed_bytes() > 0) {
    stream_.sync();
    streaming_.weights += expert_->streamed() - outside_forwards_;
  }
  expert_ = nullptr;
}

void Executor::compute(const Step& step, const Job& job) {
  CHECK(expert_ && model_ == step.pass.model, "expert", step.pass.model, "is not loaded");
  const int branch = step.pass.branch;
  const ZoneScope zone(Zone::kForward, branch);
  auto& prepared = prepared_[branch];
  if (!prepared) {
    const Arena::Scope scope(arena_);
    Context context = placement_.context(stream_, arena_, step.pass, tokens());
    const WeightOffload before = expert_->streamed();
    const TensorView& text = job.embeds[branch];
    prepared.emplace();
    prepared->conditioning = expert_->prepare(
        context, {.text = text, .text_length = experts_.text_length(text[0])}, grid_);
    prepared->rope = on_device(stream_, expert_->rope(grid_, {}, *prepared->conditioning));
    if (expert_->streamed_bytes() > 0) {
      stream_.sync();
      outside_forwards_ += expert_->streamed() - before;
    }
  }
  if (step.blocks.last() && !velocities_[branch])
    velocities_[branch] = Tensor(DType::kF32, job.latent.shape(), stream_.device());
  forward(step, job, *prepared);
}

// A forward can be recorded as a device graph if it sends nothing to other ranks and its weights
// are all resident. While a meter is attached nothing is recorded, because it must see every op.
bool Executor::recordable(const Step& step) const {
  return graphs_ == Graphs::kRecord && stream_.queue() && placement_.alone() && !thread_meter() &&
         step.blocks.first() && step.blocks.last() && expert_->streamed_bytes() == 0;
}

void Executor::forward(const Step& step, const Job& job, const Prepared& prepared) {
  const auto report = [&](const std::string& where) {
    report_non_finite(step, job, first_non_finite(stream_, job.latent) < 0 ? where : "the latent");
  };
  const auto begun = std::chrono::steady_clock::now();
  const Arena::Scope scope(arena_);
  const TensorView embedding = arena_.alloc(DType::kF32, {1, expert_->traits().time_columns});
  const TimeSegment time{{0, tokens()}, job.sampler.timesteps()[step.pass.step]};
  expert_->timestep_embedding(stream_, {&time, 1}, embedding);
  Recorded& recorded = recorded_[step.pass.branch];
  if (!recordable(step) || !recorded.ran) {
    watch_.begin(report);
    enqueue(step, job, embedding, prepared);
    recorded.ran = true;
  } else if (!recorded.graph || recorded.arena != arena_.used()) {
    watch_.begin(report);
    recorded.arena = arena_.used();
    recorded.graph.record(stream_, [&] { enqueue(step, job, embedding, prepared); });
    recorded.graph.launch(stream_);
  } else {
    watch_.again(report);
    recorded.graph.launch(stream_);
  }
  watch_.end(stream_);
  if (expert_->streamed_bytes() == 0) return;
  stream_.sync();
  ++streaming_.forwards;
  streaming_.bytes_per_forward = static_cast<int64_t>(expert_->streamed_bytes());
  streaming_.forward_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Enqueues all of a forward's work on the stream.
void Executor::enqueue(const Step& step, const Job& job, const TensorView& embedding,
                       const Prepared& prepared) {
  const Arena::Scope scope(arena_);
  Context context = placement_.context(stream_, arena_, step.pass, tokens(), &watch_);
  const TransformerTraits& traits = expert_->traits();
  const int64_t n = context.tokens.size(), rows = n + prepared.conditioning->joint_rows();
  const int branch = step.pass.branch, slot = kHiddenSlot + branch;
  const bool first = step.blocks.first(), last = step.blocks.last();
  const TensorView in = first ? arena_.alloc(DType::kF32, {n, traits.row()})
                              : arena_.alloc(DType::kF32, {rows, traits.width});
  if (first)
    patchify(stream_, job.latent, traits.patch, context.tokens, in);
  else
    copy(stream_, wire(slot, experts_.dtype(), rows, traits.width), in);
  const TensorView out = last ? arena_.alloc(DType::kF32, {n, traits.row()})
                              : arena_.alloc(DType::kF32, {rows, traits.width});
  const TimeSegment time{{0, tokens()}, job.sampler.timesteps()[step.pass.step]};
  expert_->forward(context, step.blocks, in, {&time, 1}, embedding, *prepared.conditioning,
                   prepared.rope, out);
  if (last)
    unpatchify(stream_, out, traits.patch, context.tokens, velocities_[branch]);
  else
    copy(stream_, out, wire(slot, experts_.dtype(), rows, traits.width));
}

const TensorView& Executor::wire(int slot, DType dtype, int64_t rows, int64_t columns) {
  Tensor& tensor = wires_[slot];
  if (!tensor) tensor = Tensor(dtype, {rows, columns}, stream_.device());
  CHECK(tensor.view()[0] == rows && tensor.view()[1] == columns && tensor.view().dtype == dtype,
        tensor.view().to_string_shape());
  return tensor;
}

Tag Executor::tag_of(const Step& step, const Job& job) const {
  const bool gathered =
      step.payload == Payload::kLatent && step.pass.step + 1 == job.sampler.steps();
  return {.kind = step.payload, .pass = step.pass, .hop = gathered ? kGatheredHop : 0};
}

void Executor::send(const Step& step, const Job& job) {
  const int slot = step.reads.at(0);
  const TransformerTraits& traits = expert_->traits();
  const TokenRanges own = placement_.tokens(tokens());
  TensorView view;
  if (step.payload == Payload::kHidden) {
    view = wire(slot, experts_.dtype(), own.size(), traits.width);
  } else {
    view = wire(slot, DType::kF32, own.size(), traits.row());
    const TensorView& whole =
        step.payload == Payload::kLatent ? job.latent : velocities_[step.pass.branch].view();
    if (!sending_.count(slot)) patchify(stream_, whole, traits.patch, own, view);
  }
  CHECK(static_cast<int64_t>(view.bytes()) == step.bytes, to_string(step), "has", view.bytes());
  const Message message{.peer = step.peer, .tag = tag_of(step, job), .view = view};
  sending_[slot].push_back(placement_.communicator().post(stream_, {&message, 1}, {}));
}

void Executor::receive(const Step& step, const Job& job) {
  const TransformerTraits& traits = expert_->traits();
  Communicator& communicator = placement_.communicator();
  if (step.payload == Payload::kHidden) {
    const TensorView view =
        wire(step.writes.at(0), experts_.dtype(), placement_.tokens(tokens()).size(), traits.width);
    communicator.receive(stream_, step.peer, tag_of(step, job), view);
    return;
  }
  const Arena::Scope scope(arena_);
  const TokenRanges theirs = placement_.tokens_of(step.peer, tokens());
  const TensorView rows = arena_.alloc(DType::kF32, {theirs.size(), traits.row()});
  CHECK(static_cast<int64_t>(rows.bytes()) == step.bytes, to_string(step), "has", rows.bytes());
  communicator.receive(stream_, step.peer, tag_of(step, job), rows);
  if (step.payload == Payload::kLatent) {
    unpatchify(stream_, rows, traits.patch, theirs, job.latent);
    return;
  }
  Tensor& velocity = velocities_[step.pass.branch];
  if (!velocity) velocity = Tensor(DType::kF32, job.latent.shape(), stream_.device());
  unpatchify(stream_, rows, traits.patch, theirs, velocity);
}

void Executor::wait(const Step& step) {
  const auto pending = sending_.extract(step.reads.at(0));
  CHECK(!pending.empty(), to_string(step), "but no send is pending");
  for (Communicator::Pending& send : pending.mapped()) placement_.communicator().wait(send);
}

void Executor::report_non_finite(const Step& step, const Job& job, const std::string& where) {
  char sigma[32];
  std::snprintf(sigma, sizeof sigma, "%.4f", job.sampler.sigmas()[step.pass.step]);
  throw Error(ErrorKind::kNonFinite,
              "NaN or infinity in denoise, step " + std::to_string(step.pass.step + 1) + " of " +
                  std::to_string(job.sampler.steps()) + " (sigma " + sigma + "), " +
                  (model_ ? "transformer_2, " : "transformer, ") +
                  (step.pass.branch ? "negative" : "positive") + " prompt: first in " + where +
                  ". Try --dtype f32, or check the weights with weft inspect");
}

void Executor::update(const Step& step, const Job& job) {
  const double scale = guidance_of(job.request, step.pass.model);
  guide(stream_, experts_.family(), scale, velocities_[1], velocities_[0]);
  if (!history_) {
    history_.emplace(job.latent.count(), stream_.device());
    const auto kept = job.sampler.history(*history_);
    for (size_t k = 0; k < job.history.size(); ++k)
      copy(stream_, job.history[k].reshape({job.latent.count()}), kept[k].second);
  }
  job.sampler.step(stream_, arena_, step.pass.step, velocities_[0], job.latent, *history_);
  if (first_non_finite(stream_, job.latent) >= 0)
    report_non_finite(step, job, "the latent behind guidance and solver");
  if (job.on_update) job.on_update(step.pass.step);
}

}  // namespace weft
