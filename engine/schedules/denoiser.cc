#include "engine/schedules/denoiser.h"

#include "engine/sampling/guidance.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {
constexpr int64_t kColours = 3;
}  // namespace

bool computes_with(const JobFacts& facts, const RankPlacement& placement, int model) {
  return placement.computes(0) || guidance_branches(facts.guidance[model]) == 2;
}

int64_t joint_rows_of(const TransformerModel& model, const std::array<int64_t, 3>& grid,
                      int64_t prompt, bool reference, bool motion) {
  const TransformerTraits& traits = model.traits();
  int64_t rows = model.joint_rows(grid[0] * grid[1] * grid[2], prompt);
  if (reference) rows += traits.reference_frames / traits.patch[0] * grid[1] * grid[2];
  return motion ? rows + model.motion_rows(grid) : rows;
}

DenoisePlanConfig plan_config(const JobFacts& facts, const Components& parts,
                              const RankPlacement& placement, bool motion) {
  const ModelDirectory& directory = parts.directory();
  const TransformerModel& transformer = directory.expert(0);
  const TransformerTraits& traits = transformer.traits();
  const Sequence all = facts.forward_sequence();
  const bool shows = directory.pictures.form == PictureForm::kReference;
  DenoisePlanConfig config = staged_config(placement, traits, parts.dtype(), all, facts.patches);
  for (size_t branch = 0; branch < facts.prompt_rows.size(); ++branch)
    if (const int64_t count = facts.prompt_rows[branch])
      config.joint_rows[branch] = joint_rows_of(transformer, facts.grid, count, shows, motion) +
                                  facts.reference_rows - facts.beside();
  for (int model = 0; model < directory.experts(); ++model)
    config.blocks.push_back(directory.expert(model).traits().blocks);
  config.steps = facts.steps;
  if (facts.request.cache.kind == StepCacheKind::kFirstBlock)
    config.first_block_bytes = traits.width * static_cast<int64_t>(sizeof(float));
  return config;
}

Denoiser::Denoiser(const Rank& rank, Graphs graphs)
    : LatentProgram(rank, rank.experts.dtype(), graphs) {}

void Denoiser::run(const DenoisePlanConfig& config, Job& job) {
  config_ = config;
  job_ = &job;
  skips_ = gathered_ = 0;
  for (size_t step = 0; step < config_.steps.size(); ++step)
    if (config_.steps[step].skipped) skip(static_cast<int>(step));
  if (job.skipped) std::ranges::for_each(*job.skipped, [this](int step) { skip(step); });
  begin(job, {.dual_scope = job.facts.dual_scope, .patches = job.facts.patches}, false);
  done_ = config.first_step;
  first_block_.reset();
  changes_.clear();
  errors_.clear();
  const bool caches = job.facts.request.cache.kind != StepCacheKind::kNone;
  if (caches && last_stage())
    cache_.emplace(stream_, arena_, traits_.width, job.facts.sampler.steps());
  if (config_.first_block_bytes && first_stage() && !job.facts.request.cache.skipped)
    first_block_.emplace(stream_);
  preview_.reset();
  previewed_ = {job.preview.every, job.facts.sampler.steps()};
  if (job.preview.fit && sends_latent(placement_.rank()))
    preview_.emplace(stream_, *job.preview.fit, own(),
                     LatentRows{.frame_tokens = sequence().frame_tokens(),
                                .row = traits_.row(),
                                .frames = traits_.patch[0]});
  if (done_ > 0) {
    restore(done_, {0, 1}, {0, done_ < sampler().steps()}, job.start);
  } else {
    const Range frames = frames_held(0, placement_.rank());
    enter_segment(0, drawn({.frames = frames}, frames.size()));
  }
  if (run_turns()) return;
  throw Error(ErrorKind::kStopped, "stopped in denoise after step " + std::to_string(done_) +
                                       " of " + std::to_string(job.facts.sampler.steps()));
}

bool Denoiser::run_turns() {
  Interpreter interpreter(stream_, others());
  if (config_.first_block_bytes == 0)
    return interpreter.run(plan_denoise(config_), placement_.rank(), denoise_rules(config_), *this);
  if (placement_.root()) {
    DenoisePlanConfig fewest = config_;  // all steps are skipped that may be
    for (size_t step = 0; step < fewest.steps.size(); ++step)
      fewest.steps[step].skipped |= config_.runs_ahead(static_cast<int>(step));
    for (const DenoisePlanConfig* each : {&std::as_const(config_), &std::as_const(fewest)})
      require_sound(plan_denoise(*each), denoise_rules(*each));
  }
  interpreter.open(plan_denoise(config_)[placement_.rank()]);
  Range turn{config_.first_step, config_.first_step};
  const auto next = [&]() -> std::optional<Plan> {
    if (turn.end == denoise_turns(config_).end) return std::nullopt;
    turn = {turn.end, turn.end + 1};
    decide(static_cast<int>(turn.begin));
    return plan_denoise(config_, turn)[placement_.rank()];
  };
  return interpreter.run(next, *this);
}

void Denoiser::enter_segment(int segment, const TensorView& latent) {
  if (!first_stage() && !last_stage()) return;
  const TensorView& rows =
      slots.make(kLatentSlot, DType::kF32, own().size(), traits_.row(), latent.device);
  cut_segment(segment, latent, rows);
  if (last_stage()) keep_given(rows);
  if (last_stage() && done_ < sampler().steps()) solver(segment, rows);  // kept before a first step
  stream_.sync();
}

void Denoiser::cut_segment(int, const TensorView& latent, const TensorView& rows) {
  const Range frames = placement_.clip_of(placement_.rank(), grid_[0]);
  const int64_t size = sequence().frame_tokens();
  TokenRanges held{{}, frames.size() * size};
  for (const Range& range : own().ranges)
    held.append({range.begin - frames.begin * size, range.end - frames.begin * size});
  patchify(stream_, latent, traits_.patch, held, rows);
}

LatentProgram::Part Denoiser::part_of(const SlotId& slot, const Step& decode) {
  const bool is_own = slot == kLatentSlot;
  const int last = placement_.layout()[Axis::kLayers] - 1;
  const TokenRanges held =
      tokens_of(is_own ? placement_.rank() : placement_.rank_of(last, slot.part));
  if (!placement_.has_clips()) return {slots[slot], held};
  // A part of one frame.
  const Range &frame = decode.tokens, &all = held.ranges[0];
  const Range tokens{std::max(all.begin, frame.begin), std::min(all.end, frame.end)};
  if (tokens.size() <= 0) return {};
  const TensorView rows = slots[slot];
  return {is_own ? rows.slice(0, tokens.begin - all.begin, tokens.size()) : rows,
          {{{tokens.begin - frame.begin, tokens.end - frame.begin}}, frame.size()}};
}

// The ranges of this rank's rows that are tokens of given frames.
std::vector<Range> Denoiser::given_rows() const {
  const int64_t given = job_->given_frames * sequence().frame_tokens() / traits_.patch[0];
  std::vector<Range> rows;
  int64_t first = 0;
  for (const Range& tokens : own().ranges) {
    const int64_t end = std::min(tokens.end, given);
    if (tokens.begin < end) rows.push_back({first, first + end - tokens.begin});
    first += tokens.size();
  }
  return rows;
}

void Denoiser::keep_given(const TensorView& latent) {
  given_ = {};
  int64_t count = 0;
  for (const Range& rows : given_rows()) count += rows.size();
  if (count == 0) return;
  given_ = Tensor(DType::kF32, {count, traits_.row()}, stream_.device());
  int64_t at = 0;
  for (const Range& rows : given_rows()) {
    copy(stream_, latent.slice(0, rows.begin, rows.size()),
         given_.view().slice(0, at, rows.size()));
    at += rows.size();
  }
}

// Given rows stay as they were.
void Denoiser::moved(const Range& updated, const TensorView& latent) {
  int64_t at = 0;
  for (const Range& rows : given_rows()) {
    const int64_t begin = std::max(rows.begin, updated.begin),
                  end = std::min(rows.end, updated.end);
    if (begin < end)
      copy(stream_, given_.view().slice(0, at + begin - rows.begin, end - begin),
           latent.slice(0, begin - updated.begin, end - begin));
    at += rows.size();
  }
}

std::vector<Range> Denoiser::solver_parts(const TensorView&) {
  if (config_.patches.empty()) return {{0, own().size()}};
  const int index = placement_.mesh().sequence_index(placement_.rank());
  const int64_t first = config_.rows_of(index).begin;
  std::vector<Range> patches;
  for (size_t patch = 1; patch <= config_.patches.size(); ++patch) {
    const Range rows = config_.rows_of(index, static_cast<int>(patch));
    patches.push_back({rows.begin - first, rows.end - first});
  }
  return patches;
}

int Denoiser::zone(const Step& step) const {
  const bool own_zone = step.kind == Step::Kind::kLoad || step.kind == Step::Kind::kDecode;
  return own_zone || step.turn == job_->facts.sampler.steps() ? -1 : step.turn;
}

bool Denoiser::begin_turn(int turn) {
  if (turn == job_->facts.sampler.steps()) {
    // The rest needs only the rows, which may be under way.
    show_preview(turn);
    preview_.reset();
    forwards_.finish_messages();
    if (job_->facts.request.cache.kind != StepCacheKind::kNone) gather_changes();
    cache_.reset();
    first_block_.reset();
    given_ = {};
    forwards_.end();
    if (placement_.has_clips()) {
      slots.clear_but(kLatentSlot);
      job_->host.take_channels([this](const auto& see) { gather_channels(see); });
    }
    return true;
  }
  done_ = turn;
  if (const auto& scope = job_->facts.dual_scope; scope && turn == scope->global_steps)
    forwards_.forget_graphs();  // a recorded forward has the bias of its step
  const StepAction what = job_->host.before_turn(turn, 0);
  if (keeps(what)) job_->host.keep(turn, gather(turn, {0, 1}, {0, 1}));
  if (stops(what)) forwards_.finish_messages();
  if (!stops(what)) show_preview(turn);
  return !stops(what);
}

// Gathers the colours of the last step's prediction on the root, which shows them.
void Denoiser::show_preview(int done) {
  if (!job_->preview.fit || done == config_.first_step || !previewed_.shows(done)) return;
  const Tag tag{.kind = Payload::kLatent, .pass = {.step = done}, .topic = Topic::kPreview};
  const Tensor colours =
      gather_on_root(preview_ ? preview_->colours() : TensorView(), tag, kColours);
  if (placement_.root()) job_->host.preview(done, colours);
}

// True for the rank of the last stage that reports the rows of its sequence index.
bool Denoiser::sends_latent(int rank) const {
  const int last_stage = placement_.layout()[Axis::kLayers] - 1;
  return placement_.rank_of(last_stage, placement_.mesh().sequence_index(rank)) == rank;
}

// Returns so many channels of the whole latent on the host of the root, of the rows that the first
// rank of the last pipeline stage has for each sequence index.
Tensor Denoiser::gather_on_root(const TensorView& own_rows, const Tag& tag, int64_t channels) {
  return on_host(stream_, joined_on_root(tag, own_rows, {channels, shape_[1], shape_[2], shape_[3]},
                                         [&](int rank) { return reported(0, rank); }));
}

void Denoiser::gather_channels(const std::function<void(const TensorView& channel)>& see) {
  const int64_t columns = traits_.row() / shape_[0];
  for (int64_t channel = 0; channel < shape_[0]; ++channel) {
    const Arena::Scope scope(arena_);
    TensorView rows;
    if (last_stage()) {
      rows = arena_.alloc(DType::kF32, {own().size(), columns});
      copy(stream_, slots[kLatentSlot].slice(1, channel * columns, columns), rows);
    }
    const Tag tag{.kind = Payload::kLatent,
                  .pass = {.step = job_->facts.sampler.steps()},
                  .topic = Topic::kChannels,
                  .hop = gathered_++};
    const Tensor plane = gather_on_root(rows, tag, 1);
    if (placement_.root()) see(plane.view().select(0, 0));
  }
}

void Denoiser::skip(int step) {
  config_.steps[step].skipped = true;
  config_.steps[step].audited |= job_->cache_audit > 0 && ++skips_ % job_->cache_audit == 0;
}

std::vector<int> Denoiser::skipped() const {
  std::vector<int> steps;
  for (size_t step = 0; step < config_.steps.size(); ++step)
    if (config_.steps[step].skipped) steps.push_back(static_cast<int>(step));
  return steps;
}

void Denoiser::decide(int turn) {
  if (!config_.runs_ahead(turn) || job_->facts.request.cache.skipped || is_dry_run(stream_)) return;
  const DenoisePlanConfig::DenoiseStep& step = config_.steps[turn];
  const Arena::Scope scope(arena_);
  std::array<TensorView, 2> added{};  // by the first block, per branch
  Tensor own(DType::kF32, {2, 2});
  std::fill_n(own.as<float>(), own.view().count(), 0.0f);
  for (int branch = 0; first_block_ && branch < step.branches; ++branch) {
    if (!placement_.computes(branch)) continue;
    const Pass pass{.model = step.model, .branch = branch, .step = turn};
    added[branch] = alloc_hidden(pass);
    Change change = measure_first_block(pass, added[branch]);
    job_->host.first_block(pass, change);
    own.as<float>()[2 * branch] = static_cast<float>(change.change);
    own.as<float>()[2 * branch + 1] = static_cast<float>(change.size);
  }
  const std::array<Change, 2> sums = summed(own, turn);
  const double threshold = job_->facts.request.cache.threshold;
  const auto small = [&](const Change& sum) { return sum.change < threshold * sum.size; };
  if (std::ranges::all_of(std::span(sums).first(step.branches), small)) {
    if (job_->skipped) job_->skipped->push_back(turn);
    return skip(turn);
  }
  for (int branch = 0; branch < 2; ++branch)
    if (added[branch]) first_block_->keep(branch, added[branch]);
}

// Turns `before`, hidden rows of any values, into what the first block of a pass has added.
Change Denoiser::measure_first_block(const Pass& pass, const TensorView& before) {
  const TensorView latent = slots[kLatentSlot];
  const BlockRange embedding{0, 0, config_.blocks[pass.model]};
  forwards_.run({.pass = pass}, latent,
                [&](const Forward& forward) { forward(embedding, latent, before); },
                {.repeats = false});
  const TensorView& after = slots[first_block_slot(pass.branch)];
  // Rows that all ranks of a token split have are counted on the first of them.
  const bool first = placement_.mesh().sequence_index(placement_.rank()) == 0;
  const int64_t counted = before[0] - (first ? 0 : config_.joint_rows[pass.branch]);
  return first_block_->difference(pass.branch, after, before, counted);
}

// The sum of all ranks' changes of each branch, in the ranks' order.
std::array<Change, 2> Denoiser::summed(const Tensor& own, int turn) {
  std::array<Change, 2> sums{};
  const auto add = [&](const TensorView& changes) {
    const auto* values = changes.as<float>();
    for (int branch = 0; branch < 2; ++branch) {
      sums[branch].change += values[2 * branch];
      sums[branch].size += values[2 * branch + 1];
    }
  };
  if (placement_.alone()) {
    add(own);
    return sums;
  }
  const int ranks = placement_.layout().ranks();
  const Tensor all(DType::kF32, {ranks, 2, 2});
  std::vector<TensorView> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(all.view().select(0, rank));
  const Tag tag{.kind = Payload::kControl, .pass = {.step = turn}, .topic = Topic::kSkip};
  placement_.communicator().all_gather_v(stream_, tag, own, parts);
  for (const TensorView& part : parts) add(part);
  return sums;
}

void Denoiser::run_first_block(const Step& step) {
  const Pass& pass = step.pass;
  const TensorView latent = slots[kLatentSlot];
  const TensorView& rows = slots.make(step.writes[0].slot, DType::kF32, hidden_rows(pass),
                                      traits_.width, stream_.device());
  forwards_.run(step, latent, [&](const Forward& forward) { forward(step.blocks, latent, rows); },
                {.repeats = false});
  if (!first_block_ || config_.runs_ahead(pass.step)) return;
  const Arena::Scope scope(arena_);
  const TensorView added = alloc_hidden(pass);
  measure_first_block(pass, added);
  first_block_->keep(pass.branch, added);
}

void Denoiser::compute(const Step& step) {
  if (step.writes[0].slot.kind == SlotKind::kFirstBlock) return run_first_block(step);
  const bool skipped = config_.steps[step.pass.step].skipped;
  if (cache_ && skipped && !step.reuses) return audit(step);
  run_forward(step, cache_ && step.reuses);
}

std::optional<BlockCache::Rows> Denoiser::added_rows(const Step& step) {
  if (!cache_) return std::nullopt;
  const int64_t all = hidden_rows(step.pass);
  return BlockCache::Rows{added_slot(0, step.pass.branch), all, {0, all}};
}

void Denoiser::write_before(const Step& step, const Forward& forward, const TensorView& x) {
  if (config_.first_block_bytes)
    copy(stream_, slots[first_block_slot(step.pass.branch)], x);
  else
    forward({0, 0, step.blocks.total}, slots[kLatentSlot], x);
}

// Runs a skipped step both ways, notes the difference and goes on with the cache's velocity.
void Denoiser::audit(const Step& step) {
  forwards_.run(step, slots[kLatentSlot],
                [&](const Forward& forward) { run_blocks(step, forward); }, {.repeats = false});
  const Arena::Scope scope(arena_);
  const TensorView computed = arena_.alloc(DType::kF32, {own().size(), traits_.row()});
  copy(stream_, slots[step.writes[0].slot], computed);
  run_forward(step, true);
  cache_->note_audit(step.pass.step, slots[step.writes[0].slot], computed);
}

// Adds up the changes that the ranks of the last stage have measured, on the root.
void Denoiser::gather_changes() {
  if (is_dry_run(stream_)) return;  // nothing was computed
  const auto steps = static_cast<int64_t>(job_->facts.sampler.steps());
  changes_.resize(steps);
  errors_.resize(steps);
  const auto measured = [steps](auto& changes, auto& errors, int64_t i) -> auto& {
    return i < steps ? changes[i] : errors[i - steps];
  };
  const auto take = [&](const TensorView& rows) {
    const HostCopy sums(stream_, rows);
    for (int64_t i = 0; i < 2 * steps; ++i) {
      Change& sum = measured(changes_, errors_, i);
      sum.change += sums.view().as<float>()[2 * i];
      sum.size += sums.view().as<float>()[2 * i + 1];
    }
  };
  const auto sends = [&](int rank) { return sends_latent(rank); };
  const auto new_rows = [&] { return Tensor(DType::kF32, {2 * steps, 2}); };
  Tensor own, landed;
  if (sends(placement_.rank())) {
    own = new_rows();
    for (int64_t i = 0; i < 2 * steps; ++i) {
      const Change& sum = measured(cache_->changes, cache_->errors, i);
      own.as<float>()[2 * i] = static_cast<float>(sum.change);
      own.as<float>()[2 * i + 1] = static_cast<float>(sum.size);
    }
    own = on_device(stream_, std::move(own));
  }
  if (placement_.alone()) return take(own);
  placement_.communicator().gather_v(
      stream_, {.kind = Payload::kControl, .topic = Topic::kChanges},
      own ? own.view() : TensorView(),
      [&](int rank) {
        if (!sends(rank)) return TensorView();
        landed = on_device(stream_, new_rows());
        return landed.view();
      },
      [&](int, const TensorView& rows) {
        if (rows) take(rows);
      });
}

void Denoiser::moves(const Step& step, const Range& rows, const TensorView& latent,
                     const TensorView& velocity) {
  const int index = step.pass.step;
  LatentProgram::moves(step, rows, latent, velocity);
  if (preview_ && previewed_.shows(index + 1))
    preview_->predict(stream_, arena_, sampler().sigmas()[index], latent, velocity, rows);
  if (cache_) cache_->note_velocity(index, slots[velocity_slot(0)]);
}

// An update of a patch is no step of the job's but for the last.
void Denoiser::taken(const Step& step) {
  const auto patches = std::max(1, static_cast<int>(config_.patches.size()));
  if (step.kind != Step::Kind::kUpdate || step.pass.micro % patches == 0)
    LatentProgram::taken(step);
}

// The rows of a patch are a part of the latent's.
void Denoiser::enter(const Step& step) {
  if (step.writes[0].slot.kind == SlotKind::kHidden) {  // the stage has one block only
    const TensorView& rows = slots[step.reads[0].slot];
    copy(stream_, rows,
         slots.make(step.writes[0].slot, dtype_, rows[0], traits_.width, stream_.device()));
    return;
  }
  const TensorView latent = slots[kLatentSlot];
  if (placement_.has_clips())  // lends the part of the own rows that is sent
    return slots.lend(
        step.writes[0].slot,
        latent.slice(0, step.tokens.begin - own().ranges[0].begin, step.tokens.size()));
  const std::vector<Range> rows = solver_parts(latent);
  for (size_t patch = 0; patch < rows.size() && step.writes.size() == rows.size(); ++patch)
    if (step.writes[patch].slot.kind == SlotKind::kPatch)
      slots.lend(step.writes[patch].slot, latent.slice(0, rows[patch].begin, rows[patch].size()));
}

void Denoiser::decode(const Step& step) {
  const int64_t frames = placement_.has_clips() ? traits_.patch[0] : shape_[1];
  Tensor latent;
  if (!placement_.has_clips() || receives_frames(placement_.layout(), placement_.rank()))
    latent = joined(step);
  if (placement_.has_clips())
    slots.clear_but(kLatentSlot);
  else
    slots.clear();
  const int64_t first = step.tokens.begin / sequence().frame_tokens() * traits_.patch[0];
  job_->host.take(
      {.frames = {first, first + frames}},
      latent ? latent.view()
             : TensorView(nullptr, DType::kF32, {shape_[0], frames, shape_[2], shape_[3]}));
}

}  // namespace weft
