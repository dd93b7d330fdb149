#include "engine/latents/forwards.h"

#include <chrono>
#include <cstdio>

#include "kernels/meter.h"
#include "kernels/pointwise.h"

namespace weft {

Forwards::Forwards(const Rank& rank, Graphs graphs, PassContext& passes)
    : stream_(rank.stream),
      arena_(rank.arena),
      experts_(rank.experts),
      placement_(rank.placement),
      passes_(passes),
      graphs_(graphs) {}

void Forwards::begin(ForwardJob job) {
  job_.emplace(std::move(job));
  seams_.emplace(placement_, job_->method);
  if (stream_.queue()) seams_->meet(sequence_of(job_->grid));
  recorded_ = {};
  streaming_ = {};
}

void Forwards::load(int model, bool alone) {
  recorded_ = {};
  if (alone) release();
  const Transformer& expert = experts_.expert(stream_, model);
  held_[model] = {&expert, expert.streamed()};
}

void Forwards::release() {
  for (const auto& [model, held] : held_) {
    if (held.expert->streamed_bytes() == 0) continue;
    stream_.sync();
    streaming_.weights += held.expert->streamed() - held.outside;
  }
  held_.clear();
  prepared_.clear();
}

void Forwards::forget(const std::function<bool(const Pass& prompt)>& unused) {
  std::erase_if(prepared_, [&](const auto& entry) { return unused(entry.first); });
}

void Forwards::end() {
  recorded_ = {};
  release();
  experts_.done_with_experts();
}

const Forwards::Prepared& Forwards::prepared(const Pass& pass) {
  Pass prompt{.prompt = pass.prompt, .model = pass.model, .branch = pass.branch};
  if (job_->by_micro) prompt.micro = pass.micro;
  const auto [found, fresh] = prepared_.try_emplace(prompt);
  Prepared& prepared = found->second;
  if (!fresh) return prepared;
  Held& held = held_.at(pass.model);
  const Arena::Scope scope(arena_);
  const Job& job = job_->job;
  Context context =
      seams_->context(stream_, arena_, pass, sequence_of(job_->grid), job.prompt_observer);
  const WeightOffload before = held.expert->streamed();
  Conditions conditions = job.conditions;
  conditions.text = pass.branch ? job.negative : job.prompts.at(pass.prompt);
  conditions.text_length = experts_.text_length(conditions.text[0]);
  conditions.pooled = job.pooled[pass.branch];
  passes_.condition(pass, conditions);
  prepared.conditioning = held.expert->prepare(context, conditions, job_->grid);
  prepared.rope = on_device(stream_, held.expert->rope(job_->grid, {}, *prepared.conditioning));
  if (held.expert->streamed_bytes() > 0) {
    stream_.sync();
    held.outside += held.expert->streamed() - before;
  }
  return prepared;
}

// A forward can be recorded as a device graph if the host never waits for its messages, its keys
// are those of its own step, and its weights are all resident. While a meter is attached nothing is
// recorded, because it must see every op.
bool Forwards::recordable(const Step& step, const CommCounters& messages) const {
  const ForwardMethod& method = job_->method;
  return graphs_ == Graphs::kRecord && stream_.queue() && messages.blocked == 0 &&
         !method.patches && (placement_.alone() || !method.dual_scope) && !thread_meter() &&
         step.blocks.first() && step.blocks.last() && expert(step.pass).streamed_bytes() == 0;
}

CommCounters Forwards::counters() const {
  return placement_.alone() ? CommCounters{} : placement_.communicator().counters();
}

void Forwards::run(const Step& step, const TensorView& latent, const Blocks& blocks,
                   const ForwardOptions& options) {
  const ZoneScope zone(Zone::kForward, step.pass.branch);
  prepared(step.pass);
  const Transformer& expert = this->expert(step.pass);
  const auto report = [&](const std::string& where) {
    const bool finite = !latent || first_non_finite(stream_, latent) < 0;
    report_non_finite(step.pass, finite ? where : "the latent");
  };
  const auto begun = std::chrono::steady_clock::now();
  const Arena::Scope scope(arena_);
  const std::vector<TimeSegment> times = times_of(step.pass);
  const TensorView embedding =
      arena_.alloc(DType::kF32, {std::ssize(times), expert.traits().time_columns});
  expert.timestep_embedding(stream_, times, embedding);
  const TensorView signal = signal_of(step.pass);
  const auto work = [&] {
    watch_.begin(report, job_->job.observer);
    enqueue(step, embedding, signal, blocks, options.hook);
  };
  Recorded& recorded = recorded_[step.pass.branch];
  if (!options.repeats || !recorded.ran || !recordable(step, recorded.messages)) {
    const CommCounters before = counters();
    work();
    if (options.repeats) recorded.messages = counters().since(before);
    recorded.ran |= options.repeats;
  } else if (!recorded.graph || recorded.arena != arena_.used()) {
    recorded.arena = arena_.used();
    int calls = 0;
    const bool made = recorded.graph.record(stream_, [&] {
      ++calls;
      work();
    });
    if (made)
      recorded.graph.launch(stream_);
    else
      work();
    if (!placement_.alone())  // what recordings that were lost would have sent
      placement_.communicator().count_again(recorded.messages, made ? 1 - calls : -calls);
  } else {
    watch_.again(report);
    recorded.graph.launch(stream_);
    if (!placement_.alone()) placement_.communicator().count_again(recorded.messages, 1);
  }
  watch_.end(stream_);
  if (expert.streamed_bytes() == 0) return;
  stream_.sync();
  ++streaming_.forwards;
  streaming_.bytes_per_forward = static_cast<int64_t>(expert.streamed_bytes());
  streaming_.forward_s +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

Sequence Forwards::sequence_of(const std::array<int64_t, 3>& grid) const {
  return {grid[0] * grid[1] * grid[2], grid[0], job_->job.facts.beside()};
}

const std::array<int64_t, 3>& Forwards::grid(const Pass& pass) const {
  const Rope* const own = passes_.positions(pass);
  return own ? own->grid : job_->grid;
}

// All tokens but those of given frames have one timestep; they are segments of a latent frame each
// where each follows its own signal.
std::vector<TimeSegment> Forwards::times_of(const Pass& pass) const {
  if (!job_->job.times.empty()) return job_->job.times;
  const float timestep = passes_.timestep(pass);
  const TransformerTraits& traits = expert(pass).traits();
  const std::array<int64_t, 3>& grid = this->grid(pass);
  const int64_t each = grid[1] * grid[2], tokens = grid[0] * each;
  const bool follows = traits.signal_columns > 0;
  const int64_t given = job_->job.given_frames * (each / traits.patch[0]);
  std::vector<TimeSegment> times;
  if (given > 0 && !follows) times.push_back({{0, given}, 0});
  for (int64_t at = follows ? 0 : given; at < tokens; at = times.back().tokens.end)
    times.push_back({{at, follows ? at + each : tokens}, timestep});
  return times;
}

TensorView Forwards::signal_of(const Pass& pass) const {
  if (expert(pass).traits().signal_columns == 0) return {};
  const TensorView signal = passes_.signal(pass);
  if (!signal)
    throw Error(ErrorKind::kUsage,
                "this model follows a sound, and this job has none; legal are models that follow "
                "none");
  return signal;
}

// Enqueues all of a forward's work on the stream.
void Forwards::enqueue(const Step& step, const TensorView& embedding, const TensorView& signal,
                       const Blocks& blocks, const HiddenHook& hook) {
  const Prepared& prepared = this->prepared(step.pass);
  const Rope* const own = passes_.positions(step.pass);
  Context context =
      seams_->context(stream_, arena_, in_tag(step.pass), sequence_of(grid(step.pass)), &watch_);
  const std::vector<TimeSegment> times = times_of(step.pass);
  blocks([&](const BlockRange& range, const TensorView& in, const TensorView& out) {
    expert(step.pass).forward(context, {.blocks = range,
                                        .in = in,
                                        .times = times,
                                        .embedding = embedding,
                                        .conditioning = *prepared.conditioning,
                                        .rope = own ? *own : prepared.rope,
                                        .out = out,
                                        .hook = hook,
                                        .signal = signal});
  });
}

void Forwards::check_latent(const Pass& pass, const TensorView& latent) const {
  if (first_non_finite(stream_, latent) >= 0)
    report_non_finite(pass, "the latent after guidance and solver");
}

void Forwards::report_non_finite(const Pass& pass, const std::string& where) const {
  // Messages of a job that has ended leave anything.
  if (!placement_.alone()) placement_.communicator().require_job();
  char sigma[32];
  std::snprintf(sigma, sizeof sigma, "%.4f", sampler().sigmas()[pass.step]);
  throw Error(ErrorKind::kNonFinite,
              "NaN or infinity in denoise, " +
                  (job_->in_segments ? "block " + std::to_string(pass.segment + 1) + ", " : "") +
                  "step " + std::to_string(pass.step + 1) + " of " +
                  std::to_string(sampler().steps()) + " (sigma " + sigma + "), " +
                  (pass.model ? "transformer_2, " : "transformer, ") +
                  (pass.branch ? "negative" : "positive") + " prompt: first in " + where +
                  ". Try --dtype f32, or check the weights with weft inspect");
}

}  // namespace weft
