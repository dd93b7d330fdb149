#include "engine/schedules/queue_denoiser.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

constexpr int kWindow = 16;  // turns that are planned at a time

// The number of a pass among those that keep keys in a slot.
int version_number(const QueuePlanConfig& config, const SlotVersion& keys) {
  const int per_turn = 2 * std::min(config.segments, static_cast<int>(config.steps.size()));
  return keys.turn * per_turn + keys.order;
}

// The version that has a slot of a kind, or null.
const SlotVersion* among(const std::vector<SlotVersion>& versions, SlotKind kind) {
  const auto found = std::ranges::find(
      versions, kind, [](const SlotVersion& version) { return version.slot.kind; });
  return found == versions.end() ? nullptr : &*found;
}

}  // namespace

QueuePlanConfig queue_config(const RankPlacement& placement, const TransformerTraits& traits,
                             DType wire, const std::array<int64_t, 4>& shape,
                             int64_t segment_frames) {
  const auto grid = traits.grid(shape[1], shape[2], shape[3]);
  CHECK(segment_frames % traits.patch[0] == 0, "frames", segment_frames);
  QueuePlanConfig config;
  config.layout = placement.layout();
  config.segment_frames = segment_frames / traits.patch[0];
  config.context_frames = grid[0] - config.segment_frames;
  config.frame_tokens = grid[1] * grid[2];
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(wire));
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  return config;
}

QueuePlanConfig queue_plan(const JobFacts& facts, const Components& parts,
                           const RankPlacement& placement) {
  QueuePlanConfig config = queue_config(placement, parts.traits(), parts.wire_dtype(), facts.window,
                                        std::get<Queue>(facts.request.method).frames().segment);
  config.steps = facts.steps;
  config.segments = facts.segments();
  config.prompts = facts.segment_prompts;
  for (int model = 0; model < parts.experts(); ++model)
    config.layers.push_back(parts.expert_model(model).traits().blocks);
  config.decoder = std::max(0, placement.layout().decode_rank);
  return config;
}

// Forwards are not recorded as device graphs: they read the rows of another segment each.
QueueDenoiser::QueueDenoiser(const Rank& rank, DType wire)
    : LatentProgram(rank, wire, Graphs::kNone) {}

bool QueueDenoiser::run(const QueuePlanConfig& config, Job& job) {
  config_ = &config;
  right_positions_.clear();
  begin(job, {.inner = [this] { return std::make_unique<SegmentContextMixer>(*context_); }}, true);
  make_context();
  if (last_stage() && config.longest_skip() > 0) cache_.emplace(stream_, arena_, traits_.width, 0);

  if (placement_.root()) {
    const QueuePlanConfig some = first_segments();
    require_sound(plan_queue(some), queue_rules(some));
  }
  if (const int turn = config.first_turn; turn > 0) {
    begins_ = plan_queue(config, {turn, turn + 1}, placement_.rank()).begins;
    restore(turn, config.kept_segments(turn), config.stepped_segments(turn), job.start);
  }
  bool done = run_turns(config.first_turn);
  while (!done) {
    if (keeps(action_))
      job.host.keep(turn_,
                    gather(turn_, config.kept_segments(turn_), config.stepped_segments(turn_)));
    if (stops(action_)) break;
    // The receives that the others have taken back must not take what this rank sends from now on.
    if (others())
      others()->barrier(
          stream_, {.kind = Payload::kControl, .pass = {.step = turn_}, .topic = Topic::kKept});
    done = run_turns(turn_);
  }
  forwards_.end();
  slots.clear();
  context_bytes_ = context_->bytes();
  set_bytes_ = context_bytes_ / static_cast<size_t>(config.kept_sets());
  if (cache_) set_bytes_ += added_bytes();
  context_.reset();
  cache_.reset();
  return done;
}

// The segments whose schedule later ones repeat.
QueuePlanConfig QueueDenoiser::first_segments() const {
  QueuePlanConfig some = *config_;
  some.segments = std::min(some.segments,
                           std::max(some.first_turn, 1) + static_cast<int>(some.steps.size()) + 2);
  return some;
}

// A run that ends at a turn leaves no message pending, so the next one may begin there.
bool QueueDenoiser::run_turns(int first) {
  QueuePlanConfig config = *config_;
  config.first_turn = first;
  const QueuePlanConfig* all = std::exchange(config_, &config);
  Interpreter interpreter(stream_, others());
  const QueuePlanConfig some = first_segments();
  interpreter.open(plan_queue(some, some.turns(), placement_.rank()));
  int64_t planned = first;
  const auto window = [&]() -> std::optional<Plan> {
    const int64_t begin = planned, end = config.turns().end;
    if (begin == end) return std::nullopt;
    planned = std::min(begin + kWindow, end);
    return plan_queue(config, {begin, planned}, placement_.rank());
  };
  const bool done = interpreter.run(window, *this);
  config_ = all;
  return done;
}

// The rank of the last stage that updates a part of every segment for the decoder.
int QueueDenoiser::updater(int part) const {
  const Mesh& mesh = placement_.mesh();
  std::array<int, kAxes> at{};
  for (int axis = 0; axis < kAxes; ++axis)
    at[axis] = mesh.at(static_cast<Axis>(axis), config_->decoder);
  at[static_cast<int>(Axis::kLayers)] = mesh.layout()[Axis::kLayers] - 1;
  at[static_cast<int>(Axis::kUlysses)] = part;
  return mesh.rank_at(at);
}

TokenRanges QueueDenoiser::reported(int segment, int rank) {
  const int part = placement_.mesh().sequence_index(rank);
  return updater(part) == rank ? tokens_of_part(segment, part)
                               : TokenRanges{{}, config_->own(segment).size()};
}

void QueueDenoiser::enter_segment(int segment, const TensorView& latent) {
  for (int part = 0; part < config_->layout.sequence(); ++part)
    if (begins_with(config_->segment_slot(segment, part)))
      cut_rows(latent, segment, part, rows(segment, part));
}

// The slot of a part of a segment, with room for its rows.
const TensorView& QueueDenoiser::rows(int segment, int part) {
  return slots.make(config_->segment_slot(segment, part), DType::kF32,
                    rows_of(segment, part).size(), traits_.row(), stream_.device());
}

// The branches that this rank computes.
std::vector<int> QueueDenoiser::branches() const {
  std::vector<int> branches;
  for (int branch = 0; branch < 2; ++branch)
    if (placement_.computes(branch) &&
        std::ranges::any_of(config_->steps, [&](const auto& s) { return s.branches > branch; }))
      branches.push_back(branch);
  return branches;
}

size_t QueueDenoiser::added_bytes() const {
  return branches().size() * static_cast<size_t>(rows_of(0, own_part()).size() * traits_.width) *
         sizeof(float);
}

// Keeps keys of the segments and branches that this rank computes.
void QueueDenoiser::make_context() {
  BlockRange layers = placement_.blocks(config_->layers[0]);
  for (int count : config_->layers) {
    layers.begin = std::min(layers.begin, placement_.blocks(count).begin);
    layers.end = std::max(layers.end, placement_.blocks(count).end);
  }
  const int64_t first = config_->own(1).begin;
  context_.emplace(layers, branches(), Range{first, 2 * first}, config_->kept_sets());
}

int QueueDenoiser::zone(const Step& step) const {
  const bool own_zone = step.kind == Step::Kind::kLoad || step.kind == Step::Kind::kDecode;
  return own_zone ? -1 : step.turn;
}

bool QueueDenoiser::begin_turn(int turn) {
  const Range segments = config_->passes(turn);
  forwards_.forget([&](const Pass& prompt) {
    for (int64_t segment = segments.begin; segment < segments.end && prompt.branch == 0; ++segment)
      if (config_->prompt(static_cast<int>(segment)) == prompt.prompt) return false;
    return prompt.branch == 0;
  });
  const bool told = config_->control && turn > config_->first_turn;
  const int64_t word = told ? *static_cast<int64_t*>(slots[kWordSlot].data) : 0;
  turn_ = turn;
  action_ = job_->host.before_turn(turn, word);
  return action_ == StepAction::kContinue;
}

Range QueueDenoiser::rows_of(int segment, int part) const {
  const Range rows = config_->own(segment, part);
  const int64_t first = config_->own(segment).begin;
  return {rows.begin - first, rows.end - first};
}

Segment QueueDenoiser::segment_of(int number) const {
  const int64_t each = config_->segment_frames, end = config_->context_frames + (number + 1) * each;
  return {.number = number,
          .frames = {(number ? end - each : 0) * traits_.patch[0], end * traits_.patch[0]}};
}

void QueueDenoiser::cut_rows(const TensorView& latent, int segment, int part,
                             const TensorView& rows) {
  patchify(stream_, latent, traits_.patch, tokens_of_part(segment, part), rows);
}

void QueueDenoiser::enter(const Step& step) {
  const int segment = step.pass.segment;
  const Tensor noise = drawn(segment_of(segment), segment_frames(segment));
  for (const SlotVersion& made : step.writes)
    cut_rows(noise, segment, made.slot.part, rows(segment, made.slot.part));
  stream_.sync();
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

bool QueueDenoiser::begin_pass(const Step& step) {
  SegmentContext::Use use;
  if (const SlotVersion* const read = among(step.reads, SlotKind::kKeys)) {
    use.reads = version_number(*config_, *read);
    use.reads_set = read->slot.part;
  }
  if (const SlotVersion* const kept = among(step.writes, SlotKind::kKeys)) {
    use.keeps = version_number(*config_, *kept);
    use.keeps_set = kept->slot.part;
  }
  if (forwards_.prepared(step.pass).conditioning->joint_rows() > 0)
    throw Error(ErrorKind::kUsage,
                "--method queue: this model joins the prompt's rows to those of the latent; legal "
                "are models of video, which do not");
  if (use.reads) use.rope = &right_positions(step.pass);
  context_->begin(use);
  return true;
}

std::optional<BlockCache::Rows> QueueDenoiser::added_rows(const Step& step) {
  const SlotVersion* const added = among(step.reuses ? step.reads : step.writes, SlotKind::kAdded);
  if (!added) return std::nullopt;
  const Range rows = config_->part(own_part()), own = config_->own(step.pass.segment, own_part());
  return BlockCache::Rows{added->slot, rows.size(), {own.begin - rows.begin, own.end - rows.begin}};
}

// Embeds this rank's own rows of a segment. The last stage has no rows of the segment before, and
// the ends of a transformer compute every row alone: zeros take their place.
void QueueDenoiser::write_before(const Step& step, const Forward& forward, const TensorView& x) {
  const TensorView own = slots[segment_slot(step.pass.segment)];
  const int64_t before = x[0] - own[0];
  const Arena::Scope scope(arena_);
  const TensorView in = arena_.alloc(DType::kF32, {x[0], traits_.row()});
  if (before > 0) fill_zero(stream_, in.slice(0, 0, before));
  copy(stream_, own, in.slice(0, before, own[0]));
  forward({0, 0, step.blocks.total}, in, x);
}

// The rows of a forward: the last frames of the segment before, then the segment's own.
TensorView QueueDenoiser::latent_rows(const Step& step) {
  const int segment = step.pass.segment;
  const Range rows = config_->part(own_part()), before = prefix_tokens(*config_, own_part());
  const TensorView in = arena_.alloc(DType::kF32, {rows.size(), traits_.row()});
  for (const SlotVersion& version : step.reads) {
    if (version.slot.kind != SlotKind::kSegment) continue;
    const int part = version.slot.part;
    const bool own = version.slot == config_->segment_slot(segment, part);
    const Range held = config_->own(own ? segment : segment - 1, part);
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
  const Range rows = config_->part(own_part()), own = config_->own(step.pass.segment, own_part());
  if (!velocity) velocity = Tensor(DType::kF32, {rows.size(), traits_.row()}, stream_.device());
  for (const SlotVersion& made : step.writes)
    if (made.slot.kind == SlotKind::kVelocity)
      slots.lend(made.slot, velocity.view().slice(0, own.begin - rows.begin, own.size()));
  return velocity;
}

void QueueDenoiser::word(const Step& step) {
  if (step.writes.empty()) return;
  const int64_t word = job_->host.decide(step.turn);
  *static_cast<int64_t*>(slots.make(kWordSlot, DType::kI64, 1, 1).data) = word;
}

void QueueDenoiser::decode(const Step& step) {
  const Tensor latent = joined(step);
  job_->host.take(segment_of(step.pass.segment), latent);
}

}  // namespace weft
