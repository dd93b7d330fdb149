#include "engine/schedules/stream_denoiser.h"

#include <cstring>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/blocks.h"

namespace weft {
namespace {

// The word of a segment begins with it; the rows of the signal follow.
struct Header {
  int32_t segment;  // of the plan
  int32_t frames;
  uint32_t epoch;
  uint32_t last;

  NextSegment next() const { return {.frames = frames, .epoch = epoch, .last = last != 0}; }
};
static_assert(sizeof(Header) == StreamPlanConfig::kWordBytes);

// The bytes of a tensor from `first` on.
TensorView bytes_of(const TensorView& x, int64_t first, int64_t count) {
  return {static_cast<char*>(x.data) + first, DType::kU8, {count}, x.device};
}
TensorView header_in(const TensorView& word) { return word.slice(0, 0, sizeof(Header)); }
TensorView signal_in(const TensorView& word) {
  return word.slice(0, sizeof(Header), word[0] - int64_t{sizeof(Header)});
}

}  // namespace

StreamPlanConfig stream_config(const RankPlacement& placement, const TransformerTraits& traits,
                               DType wire, const JobFacts& facts, const StreamSource& source) {
  const auto& shape = facts.window;
  const auto grid = traits.grid(shape[1], shape[2], shape[3]);
  StreamPlanConfig config;
  config.layout = placement.layout();
  config.steps = facts.sampler.steps();
  config.segment_frames = grid[0];
  config.frame_tokens = grid[1] * grid[2];
  config.sink_frames = source.sink ? source.sink[1] / traits.patch[0] : 0;
  config.sink_joint_rows = source.motion_rows;
  config.layers = traits.blocks;
  config.heads = traits.heads;
  config.hidden_bytes = traits.width * static_cast<int64_t>(size_of(wire));
  config.latent_bytes = traits.row() * static_cast<int64_t>(sizeof(float));
  config.signal_bytes = grid[0] * traits.signal_columns * static_cast<int64_t>(sizeof(float));
  return config;
}

// Forwards are not recorded as device graphs: each writes other slots of the window.
StreamDenoiser::StreamDenoiser(const Rank& rank, DType wire)
    : LatentProgram(rank, wire, Graphs::kNone), world_(rank.world) {}

CausalWindowShape StreamDenoiser::window_shape() const {
  return {.layers = placement_.blocks(config_.layers),
          .steps = config_.group(placement_.mesh().at(Axis::kStep, placement_.rank())),
          .frames = source_->window_frames / traits_.patch[0],
          .frame_tokens = config_.frame_tokens,
          .sink_tokens = config_.sink_tokens().size() + config_.sink_joint_rows,
          .sinks = config_.swaps() ? 2 : 1,
          .kept = source_->kept};
}

void StreamDenoiser::run(const StreamPlanConfig& config, Job& job, StreamSource& source) {
  if (!job.facts.sampler.history(SamplerState(0)).empty())
    throw Error(ErrorKind::kUsage,
                "the solver is " + std::string(to_string(job.facts.sampler.config().kind)) +
                    ", which steps with what earlier steps have left; legal for a stream: euler");
  config_ = config;
  source_ = &source;
  known_.clear();
  known_.resize(config.live());
  learned_ = 0;
  last_ = StreamPlanConfig::kEndless;
  following_ = source.state ? source.state->following : Segment{};
  CHECK(!source.state || config.swap_segment == 0, "the sink is swapped before block",
        config.swap_segment);
  CHECK(!source.state || config.layout[Axis::kUlysses] * config.layout[Axis::kTensor] == 1,
        to_string(config.layout));
  word_ = Tensor(DType::kU8, {config.word_bytes()});
  drawn_ = {};
  silence_ = {};
  begin(job, {.inner = [this] { return std::make_unique<CausalWindowMixer>(*window_); }}, true,
        traits_.reference_frames > 0);
  ulysses_group_.reset();
  entering_group_.reset();
  const auto along = [&](const std::vector<Axis>& axes) {
    return placement_.mesh().along(axes, placement_.rank());
  };
  if (computes() && config_.layout[Axis::kUlysses] > 1)
    ulysses_group_ = placement_.group(along({Axis::kUlysses}), kUlyssesGroup);
  if (computes() && config_.layout[Axis::kUlysses] * config_.layout[Axis::kTensor] > 1)
    entering_group_ = placement_.group(along({Axis::kUlysses, Axis::kTensor}), kEnteringGroup);
  if (computes()) window_.emplace(window_shape());
  if (source.state) {
    if (window_) window_->take(source.state->keys);
    // Ranks that are threads share the state: none leaves its own before all have taken theirs.
    if (Communicator* ranks = world_ ? world_ : others()) ranks->barrier(stream_, {});
  }

  const StreamPlanConfig brief = config.brief();
  if (rank() == 0) {
    std::vector<Plan> plans;
    for (int each = 0; each < brief.ranks(); ++each)
      plans.push_back(source.plan(brief, brief.turns(), each));
    require_sound(plans, stream_rules(brief));
  }
  Interpreter interpreter(stream_, world_ ? world_ : others());
  interpreter.open(source.plan(brief, brief.turns(), rank()));
  int64_t planned = 0;
  interpreter.run([&] { return next_window(planned); }, *this);
  forwards_.end();
  slots.clear();
  window_bytes_ = window_ ? window_->bytes() : 0;
  if (window_ && source.state) window_->leave(source.state->keys);
  if (rank() == 0 && source.state) source.state->following = following_;
  window_.reset();
}

std::optional<Plan> StreamDenoiser::next_window(int64_t& planned) {
  const int64_t begin = planned, end = config_.turns().end;
  if (begin == end) return std::nullopt;
  planned = std::min(begin + config_.window(), end);
  return source_->plan(config_, {begin, planned}, rank());
}

StreamDenoiser::Known& StreamDenoiser::known(int segment) {
  Known& known = known_[segment % known_.size()];
  CHECK(known.segment == segment, "block", segment, "is not known; there is", known.segment);
  return known;
}

// Returns the host's answer to what comes next, checked.
NextSegment StreamDenoiser::asked(int segment) {
  const int64_t most = shape_[1], whole = traits_.patch[0];
  NextSegment next{.frames = 0};
  if (segment < last_) next = job_->host.next(following_.number, most);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage,
                "block " + std::to_string(following_.number) + " of a stream " + what);
  };
  if (next.frames < 0 || next.frames > most || next.frames % whole != 0)
    refuse("has " + std::to_string(next.frames) + " latent frames; legal are multiples of " +
           std::to_string(whole) + " up to " + std::to_string(most));
  const int64_t least = config_.swaps() ? config_.sink_frames * whole : 1;
  const bool is_empty = next.last && next.frames == 0;
  if (segment == 0 && next.frames < least && !is_empty)
    refuse("has " + std::to_string(next.frames) + " latent frames; the first one has at least " +
           std::to_string(least));
  next.last |= segment + 1 == config_.most_segments();
  return next;
}

// Asks the host for the next segment's word. Of several ranks that split the first stage's forwards
// the first one does, and tells the others.
void StreamDenoiser::decide(int segment) {
  const TensorView word = word_, signal = signal_in(word);
  Header header{.segment = segment, .frames = 0, .epoch = 0, .last = 0};
  if (entering_group_ && entering_group_->rank() > 0) {
    // In a dry run nobody answers.
    if (segment < last_) header.frames = static_cast<int32_t>(shape_[1]);
  } else {
    const NextSegment next = asked(segment);
    header.frames = static_cast<int32_t>(next.frames);
    header.epoch = next.epoch;
    header.last = next.last;
    const int64_t begin = following_.frames.end, columns = traits_.signal_columns;
    if (next.frames > 0 && columns > 0 && !is_dry_run(stream_))
      job_->host.signal({.number = following_.number,
                         .frames = {begin, begin + next.frames},
                         .epoch = next.epoch},
                        {signal.data, DType::kF32, {next.frames / traits_.patch[0], columns}});
  }
  std::memcpy(word.data, &header, sizeof header);
  if (entering_group_) {
    const Tag tag{
        .kind = Payload::kControl, .pass = in_tag({.segment = segment}), .topic = Topic::kSegment};
    entering_group_->broadcast(stream_, tag, word, 0);
    std::memcpy(&header, word.data, sizeof header);
  }
  learn(segment, header.next(), signal);
}

// `signal` begins with the bytes of its signal, where this rank follows one.
void StreamDenoiser::learn(int segment, const NextSegment& next, const TensorView& signal) {
  CHECK(segment == learned_, "block", segment, "after", learned_);
  ++learned_;
  Known& known = known_[segment % known_.size()];
  known.segment = segment;
  known.last = next.last;
  following_.frames = {following_.frames.end, following_.frames.end + next.frames};
  following_.epoch = next.epoch;
  known.of = following_;
  if (next.last && segment < last_) {
    last_ = segment + 1;
    if (config_.segments == StreamPlanConfig::kEndless)
      config_.segments = config_.end_after(segment);
  }
  if (next.frames == 0) return;
  ++following_.number;
  const int64_t columns = traits_.signal_columns, frames = next.frames / traits_.patch[0];
  if (!computes() || columns == 0) return;
  if (!known.signal)
    known.signal = Tensor(DType::kF32, {config_.segment_frames, columns}, stream_.device());
  const auto bytes = static_cast<int64_t>(known.signal.view().slice(0, 0, frames).bytes());
  copy(stream_, signal.slice(0, 0, bytes), bytes_of(known.signal, 0, bytes));
}

// The bytes of the word in the rows of a message.
TensorView StreamDenoiser::word_of(const Pass& pass, const TensorView& rows) const {
  const int64_t count = config_.word_bytes(pass);
  const auto tokens = static_cast<int64_t>(rows.slice(0, 0, this->tokens()).bytes());
  CHECK(tokens + count <= static_cast<int64_t>(rows.bytes()), rows.bytes(), tokens, count);
  return bytes_of(rows, tokens, count);
}

void StreamDenoiser::read_word(const Pass& pass, const TensorView& rows) {
  const TensorView word = word_of(pass, rows);
  Header header{
      .segment = pass.segment, .frames = static_cast<int32_t>(shape_[1]), .epoch = 0, .last = 0};
  if (!is_dry_run(stream_)) {
    const HostCopy bytes(stream_, header_in(word));
    std::memcpy(&header, bytes.view().data, sizeof header);
  }
  CHECK(header.segment == pass.segment, "rows of block", header.segment, "in place of",
        pass.segment);
  if (pass.segment == learned_) learn(pass.segment, header.next(), signal_in(word));
}

void StreamDenoiser::write_word(const Pass& pass, const TensorView& rows) {
  const TensorView word = word_of(pass, rows);
  const Known& known = this->known(pass.segment);
  const int64_t frames = known.of.frames.size();
  const Header header{.segment = pass.segment,
                      .frames = static_cast<int32_t>(frames),
                      .epoch = known.of.epoch,
                      .last = known.last};
  make_on_host(stream_, header_in(word),
               [&](const TensorView& to) { std::memcpy(to.data, &header, sizeof header); });
  if (frames == 0 || traits_.signal_columns == 0) return;
  const TensorView signal = known.signal.view().slice(0, 0, frames / traits_.patch[0]);
  const auto bytes = static_cast<int64_t>(signal.bytes());
  copy(stream_, bytes_of(signal, 0, bytes), signal_in(word).slice(0, 0, bytes));
}

// Rows of a segment stay in their slot while it goes from step to step, and the word after them;
// each message carries what its receiver needs of it.
void StreamDenoiser::prepare(const Step& message) {
  LatentProgram::prepare(message);
  if (message.kind == Step::Kind::kSend && message.payload == Payload::kLatent &&
      !is_sink(message.pass))
    latent_slot(message.reads[0].slot, message_rows(message));
}

// The first values of a tensor like that of a whole segment, as one with fewer frames.
TensorView StreamDenoiser::part(const Tensor& whole, int64_t frames) const {
  return {whole.view().data,
          DType::kF32,
          {shape_[0], frames, shape_[2], shape_[3]},
          whole.view().device};
}

int64_t StreamDenoiser::rows_of(const Pass& pass) {
  return is_sink(pass)
             ? config_.sink_tokens().size()
             : known(pass.segment).of.frames.size() / traits_.patch[0] * config_.frame_tokens;
}

void StreamDenoiser::enter(const Step& step) {
  const int segment = step.pass.segment;
  if (is_sink(step.pass)) return enter_sinks(step);
  if (segment == learned_) decide(segment);
  const TensorView& rows =
      latent_slot(step.writes[0].slot, config_.rows(step.pass, config_.tokens(), Payload::kLatent));
  write_word(step.pass, rows);
  const int64_t frames = known(segment).of.frames.size();
  if (frames == 0) return;
  if (!drawn_) drawn_ = Tensor(DType::kF32, shape_, stream_.device());
  const TensorView noise = part(drawn_, frames);
  make_on_host(stream_, noise,
               [&](const TensorView& to) { job_->host.noise(known(segment).of, to); });
  const int64_t count = rows_of(step.pass);
  patchify(stream_, noise, traits_.patch, TokenRanges::all(count), rows.slice(0, 0, count));
}

void StreamDenoiser::enter_sinks(const Step& step) {
  for (const SlotVersion& made : step.writes) {
    const TensorView& rows = latent_slot(made.slot, config_.sink_tokens().size());
    if (step.reads.empty())
      patchify(stream_, source_->sink, traits_.patch, TokenRanges::all(rows[0]), rows);
    else
      copy(stream_, slots[step.reads[0].slot].slice(0, 0, rows[0]), rows);
  }
}

void StreamDenoiser::received(const Step& message) {
  if (message.payload != Payload::kControl && config_.word_bytes(message.pass) > 0)
    read_word(message.pass, slots[message.writes[0].slot]);
}

// Tells the window what the pass does, and finds its positions.
void StreamDenoiser::begin_segment(const Pass& pass) {
  const Transformer& expert = forwards_.expert(pass);
  const Conditioning& conditioning = *forwards_.prepared(pass).conditioning;
  const auto positions = [&](int64_t frames, int64_t first) {
    return on_device(stream_,
                     expert.rope({frames, grid_[1], grid_[2]}, {first, 0, 0}, conditioning));
  };
  const Segment& segment = known(pass.segment).of;
  const Range frames{segment.frames.begin / traits_.patch[0],
                     segment.frames.end / traits_.patch[0]};
  const Range seen = window_->seen(frames);
  const std::vector<double> slot_positions = window_->slot_positions(frames);
  queries_ = positions(frames.size(), frames.begin - seen.begin);
  keys_ = with_frame_positions(stream_, positions(seen.size(), 0), slot_positions);
  if (config_.sink_frames > 0)
    sink_keys_ = positions(
        config_.sink_frames,
        sink_frame(source_->sink_position, segment.number, pass.step, frames.begin) - seen.begin);
  const Rope* sink_joint = nullptr;
  if (config_.sink_joint_rows > 0) {
    Pass sink = pass;
    sink.micro = StreamPlanConfig::kSinkPass;
    sink_joint_ =
        on_device(stream_, expert.joint_rope(-seen.begin, *forwards_.prepared(sink).conditioning));
    sink_joint = &sink_joint_;
  }
  window_->begin({.step = pass.step,
                  .frames = frames,
                  .keys = &keys_,
                  .sink = sees_second_sink(segment.number),
                  .sink_keys = &sink_keys_,
                  .sink_replicated = sink_joint});
}

void StreamDenoiser::begin_sink(const Pass& pass) {
  queries_ =
      on_device(stream_, forwards_.expert(pass).rope({config_.sink_frames, grid_[1], grid_[2]},
                                                     {source_->sink_position.start, 0, 0},
                                                     *forwards_.prepared(pass).conditioning));
  window_->begin_sink(pass.segment > 0);
}

bool StreamDenoiser::begin_pass(const Step& step) {
  const Pass& pass = step.pass;
  if (forwards_.prepared(pass).conditioning->joint_rows() != joint_rows(pass))
    throw Error(ErrorKind::kUsage,
                "a stream: this model joins the prompt's rows to those of the latent; legal are "
                "models of video, which do not");
  if (!step.blocks.last()) {
    const TensorView& sent =
        slots.make(step.writes[0].slot, dtype_, config_.rows(pass, step.tokens, Payload::kHidden),
                   traits_.width, stream_.device());
    // Later stages send it as they have received it.
    if (first_stage() && config_.word_bytes(pass) > 0) write_word(pass, sent);
  }
  if (rows_of(pass) == 0) return false;
  if (is_sink(pass))
    begin_sink(pass);
  else
    begin_segment(pass);
  return true;
}

// Under ulysses it computes this rank's tokens, and gets the velocity of the others.
void StreamDenoiser::run_blocks(const Step& step, const Forward& forward) {
  if (!ulysses_group_) return LatentProgram::run_blocks(step, forward);
  const Arena::Scope scope(arena_);
  const int64_t count = rows_of(step.pass);
  const Sequence all{count, count / config_.frame_tokens};
  const SequenceMap map = placement_.token_map(all);
  const int own = ulysses_group_->rank();
  std::vector<TensorView> parts;
  const TensorView velocity = velocity_rows(step);
  int64_t first = 0;
  for (int rank = 0; rank < map.size(); first += map.rows(rank++))
    parts.push_back(velocity.slice(0, first, map.rows(rank)));
  const int64_t begin = placement_.tokens(all).ranges[0].begin;
  forward(step.blocks, slots[step.reads[0].slot].slice(0, begin, map.rows(own)), parts[own]);
  if (is_sink(step.pass)) return;
  const Tag tag{.kind = Payload::kVelocity, .pass = in_tag(step.pass)};
  ulysses_group_->all_gather_v(stream_, tag, parts[own], parts);
}

// Nobody reads the velocity of a sink.
TensorView StreamDenoiser::velocity_rows(const Step& step) {
  const int64_t count = rows_of(step.pass);
  return step.writes.empty() ? arena_.alloc(DType::kF32, {count, traits_.row()})
                             : latent_slot(step.writes[0].slot, tokens()).slice(0, 0, count);
}

TensorView StreamDenoiser::signal(const Pass& pass) {
  if (!is_sink(pass))
    return known(pass.segment).signal.view().slice(0, 0, rows_of(pass) / config_.frame_tokens);
  if (!silence_)
    silence_ = Tensor(DType::kF32, {config_.sink_frames, traits_.signal_columns}, stream_.device());
  return silence_;
}

// A solver without a history keeps nothing for the next step.
void StreamDenoiser::update(const Step& step) {
  if (rows_of(step.pass) == 0) return;
  LatentProgram::update(step);
  forget_solver(step.pass.segment);
}

void StreamDenoiser::decode(const Step& step) {
  const Segment& segment = known(step.pass.segment).of;
  if (segment.frames.size() == 0) return;
  const Tensor latent = joined(step);
  job_->host.take(segment, latent);
}

}  // namespace weft
