#include "engine/generation/denoiser.h"

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

// Tag::hop of a checkpoint's messages, one per tensor. The plan's messages have hop 0.
constexpr int kFirstKeptHop = 1;

}  // namespace

double guidance_of(const Request& request, int model) {
  return model ? *request.guidance_scale_2 : *request.guidance_scale;
}

bool computes_with(const Request& request, const RankPlacement& placement, int model) {
  return placement.computes(0) || guidance_branches(guidance_of(request, model)) == 2;
}

std::optional<DualScope> dual_scope_of(const Request& request) {
  const Method& method = request.method;
  if (method.kind != MethodKind::kClips) return std::nullopt;
  return DualScope{.window = *method.window,
                   .global = *method.global,
                   .trained = *method.trained,
                   .bias = *method.bias,
                   .stale = static_cast<int>(*method.stale),
                   .warmup = static_cast<int>(*method.warmup)};
}

DenoisePlanConfig plan_config(const Request& request, const Sampler& sampler,
                              const Components& parts, const RankPlacement& placement,
                              const Sequence& all, std::array<int64_t, 2> prompt_rows) {
  const ModelDirectory& directory = parts.directory();
  const TransformerModel& transformer = directory.expert(0);
  DenoisePlanConfig config = staged_config(placement, transformer.traits(), parts.dtype(), all);
  for (size_t branch = 0; branch < prompt_rows.size(); ++branch)
    if (const int64_t rows = prompt_rows[branch])
      config.joint_rows[branch] = transformer.joint_rows(all.tokens, rows);
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

Denoiser::Denoiser(Stream& stream, Arena& arena, Experts& experts, RankPlacement& placement,
                   Graphs graphs)
    : StagedProgram(stream, arena, placement, experts.traits(), experts.dtype()),
      experts_(experts),
      graphs_(graphs) {}

void Denoiser::run(const DenoisePlanConfig& config, Job& job) {
  job_ = &job;
  recorded_ = {};
  streaming_ = {};
  clip_ = {.step = config.first_step};
  std::optional<DualScope> scope = dual_scope_of(job.request);
  if (scope)
    global_steps_ = scope->global_steps = job.sampler.steps_from(*job.request.method.global_sigma);
  placement_.set_dual_scope(scope);
  if (run_from(std::move(job.latent), config)) return;
  throw Error(ErrorKind::kStopped, "stopped in denoise after step " + std::to_string(clip_.step) +
                                       " of " + std::to_string(job.sampler.steps()));
}

void Denoiser::begun() {
  if (!last_stage()) {
    job_->history.clear();
    return;
  }
  const TensorView rows = slots[kLatentSlot];
  clip_.history.emplace(rows.count(), stream_.device());
  const auto kept = job_->sampler.history(*clip_.history);
  for (size_t k = 0; k < job_->history.size(); ++k)
    cut(job_->history[k], kept[k].second.reshape({rows[0], rows[1]}));
  stream_.sync();
  job_->history.clear();
}

int Denoiser::zone(const Step& step) const {
  const bool own_zone = step.kind == Step::Kind::kLoad || step.kind == Step::Kind::kDecode;
  return own_zone || step.turn == job_->sampler.steps() ? -1 : step.turn;
}

bool Denoiser::begin_turn(int turn) {
  placement_.finish_turn();
  if (turn == job_->sampler.steps()) {  // what remains needs only the rows, which may be under way
    recorded_ = {};
    prepared_.clear();
    clip_ = {};
    release_expert();
    experts_.done_with_experts();
    return true;
  }
  clip_.step = turn;
  if (turn == global_steps_) recorded_ = {};  // a recorded forward has the bias of its step
  const StepAction what = job_->before_step ? job_->before_step(turn) : StepAction::kContinue;
  if (what == StepAction::kKeep || what == StepAction::kKeepAndStop) {
    Snapshot snapshot = gather(turn);
    if (placement_.root()) job_->keep(turn, std::move(snapshot));
  }
  return what == StepAction::kContinue || what == StepAction::kKeep;
}

// Gathers the newest latent and history on the root.
Snapshot Denoiser::gather(int done) {
  const SamplerState none(0);
  const auto history = job_->sampler.history(clip_.history ? *clip_.history : none);
  Snapshot out;
  const auto join = [&](const TensorView& rows, size_t index) {
    return gather_on_root(rows, {.kind = Payload::kLatent,
                                 .pass = {.step = done},
                                 .hop = kFirstKeptHop + static_cast<int>(index)});
  };
  out.latent = join(holds_latent() ? slots[kLatentSlot] : TensorView(), 0);
  for (size_t k = 0; k < history.size(); ++k)
    out.history.emplace_back(history[k].first, join(history[k].second, k + 1));
  return out;
}

// Returns the whole latent on the host of the root, of the rows that the first rank of the last
// pipeline stage has for each sequence index.
Tensor Denoiser::gather_on_root(const TensorView& own_rows, const Tag& tag) {
  const int last_stage = placement_.layout()[Axis::kLayers] - 1;
  const auto sends = [&](int rank) {
    return placement_.rank_of(last_stage, placement_.mesh().sequence_index(rank)) == rank;
  };
  TensorView own;
  if (sends(placement_.rank())) own = own_rows.reshape({this->own().size(), traits_.row()});
  Tensor whole;
  if (placement_.root()) whole = Tensor(DType::kF32, shape_, stream_.device());
  std::optional<Arena::Scope> scope;  // of the rows that arrive
  const auto landing = [&](int rank) {
    if (rank == 0 || !sends(rank)) return rank == 0 ? own : TensorView();
    scope.emplace(arena_);
    const int64_t rows = placement_.tokens_of(rank, sequence()).size();
    return arena_.alloc(DType::kF32, {rows, traits_.row()});
  };
  const auto place = [&](int rank, const TensorView& rows) {
    unpatchify(stream_, rows, traits_.patch, placement_.tokens_of(rank, sequence()), whole);
    scope.reset();
  };
  if (placement_.alone())
    place(0, own);
  else
    placement_.communicator().gather_v(stream_, tag, own, landing, place);
  return on_host(stream_, std::move(whole));
}

void Denoiser::load(const Step& step) {
  recorded_ = {};
  prepared_.clear();  // prompts are prepared for one expert
  release_expert();
  expert_ = &experts_.expert(stream_, step.pass.model);
  outside_forwards_ = expert_->streamed();
}

void Denoiser::release_expert() {
  if (expert_ && expert_->streamed_bytes() > 0) {
    stream_.sync();
    streaming_.weights += expert_->streamed() - outside_forwards_;
  }
  expert_ = nullptr;
}

const Denoiser::Prepared& Denoiser::prepared(const Pass& pass) {
  const auto [found, fresh] = prepared_.try_emplace({pass.model, pass.branch, pass.request});
  Prepared& prepared = found->second;
  if (!fresh) return prepared;
  const Arena::Scope scope(arena_);
  Context context = placement_.context(stream_, arena_, pass, sequence());
  const WeightOffload before = expert_->streamed();
  const TensorView& text = job_->embeds[pass.branch];
  prepared.conditioning = expert_->prepare(
      context, {.text = text, .text_length = experts_.text_length(text[0])}, grid_);
  prepared.rope = on_device(stream_, expert_->rope(grid_, {}, *prepared.conditioning));
  if (expert_->streamed_bytes() > 0) {
    stream_.sync();
    outside_forwards_ += expert_->streamed() - before;
  }
  return prepared;
}

int64_t Denoiser::joint_rows(const Pass& pass) { return prepared(pass).conditioning->joint_rows(); }

void Denoiser::compute(const Step& step) {
  const ZoneScope zone(Zone::kForward, step.pass.branch);
  forward(step, prepared(step.pass));
}

// A forward can be recorded as a device graph if it sends nothing to other ranks and its weights
// are all resident. While a meter is attached nothing is recorded, because it must see every op.
bool Denoiser::recordable(const Step& step) const {
  return graphs_ == Graphs::kRecord && stream_.queue() && placement_.alone() && !thread_meter() &&
         step.blocks.first() && step.blocks.last() && expert_->streamed_bytes() == 0;
}

void Denoiser::forward(const Step& step, const Prepared& prepared) {
  const auto report = [&](const std::string& where) {
    const bool finite = !holds_latent() || first_non_finite(stream_, slots[kLatentSlot]) < 0;
    report_non_finite(step, finite ? where : "the latent");
  };
  const auto begun = std::chrono::steady_clock::now();
  const Arena::Scope scope(arena_);
  const TensorView embedding = arena_.alloc(DType::kF32, {1, traits_.time_columns});
  const TimeSegment time{{0, tokens()}, job_->sampler.timesteps()[step.pass.step]};
  expert_->timestep_embedding(stream_, {&time, 1}, embedding);
  Recorded& recorded = recorded_[step.pass.branch];
  if (!recordable(step) || !recorded.ran) {
    watch_.begin(report);
    enqueue(step, embedding, prepared);
    recorded.ran = true;
  } else if (!recorded.graph || recorded.arena != arena_.used()) {
    watch_.begin(report);
    recorded.arena = arena_.used();
    recorded.graph.record(stream_, [&] { enqueue(step, embedding, prepared); });
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
void Denoiser::enqueue(const Step& step, const TensorView& embedding, const Prepared& prepared) {
  Context context = placement_.context(stream_, arena_, step.pass, sequence(), &watch_);
  const TimeSegment time{{0, tokens()}, job_->sampler.timesteps()[step.pass.step]};
  run_blocks(step, [&](const TensorView& in, const TensorView& out) {
    expert_->forward(context, {.blocks = step.blocks,
                               .in = in,
                               .times = {&time, 1},
                               .embedding = embedding,
                               .conditioning = *prepared.conditioning,
                               .rope = prepared.rope,
                               .out = out});
  });
}

void Denoiser::report_non_finite(const Step& step, const std::string& where) {
  char sigma[32];
  std::snprintf(sigma, sizeof sigma, "%.4f", job_->sampler.sigmas()[step.pass.step]);
  throw Error(ErrorKind::kNonFinite,
              "NaN or infinity in denoise, step " + std::to_string(step.pass.step + 1) + " of " +
                  std::to_string(job_->sampler.steps()) + " (sigma " + sigma + "), " +
                  (step.pass.model ? "transformer_2, " : "transformer, ") +
                  (step.pass.branch ? "negative" : "positive") + " prompt: first in " + where +
                  ". Try --dtype f32, or check the weights with weft inspect");
}

void Denoiser::update(const Step& step) {
  const Arena::Scope scope(arena_);
  const TensorView& latent = slots[kLatentSlot];
  const TensorView &positive = slots[kVelocitySlot],
                   velocity = arena_.alloc(DType::kF32, positive.shape());
  copy(stream_, positive, velocity);
  const bool guided = step.reads.size() > 2;
  guide(stream_, experts_.family(), guidance_of(job_->request, step.pass.model),
        guided ? slots[kVelocitySlot + 1] : TensorView(), velocity);
  if (job_->on_velocity) job_->on_velocity(step.pass.step, velocity);
  job_->sampler.step(stream_, arena_, step.pass.step, velocity, latent, *clip_.history);
  if (first_non_finite(stream_, latent) >= 0)
    report_non_finite(step, "the latent behind guidance and solver");
  if (job_->on_update) job_->on_update(step.pass.step);
}

void Denoiser::decode(const Step& step) {
  const Tensor latent = take_latent(step);
  job_->decode(latent);
}

}  // namespace weft
