#include "parallel/schedule/stream_plan.h"

#include <algorithm>
#include <optional>

#include "kernels/check.h"
#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/plan_writer.h"

namespace weft {

namespace {

constexpr int64_t kPermitBytes = sizeof(int64_t);

int ceil_div(int a, int b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

// A forward: of step `step` of a segment, or of the sink before the first step of a group.
struct Forward {
  int segment, step;
  bool sink;
};

class StreamWriter final : public PlanWriter {
 public:
  StreamWriter(const StreamPlanConfig& config, int rank)
      : PlanWriter(rank, config.ranks()), config_(config), mesh_(config.layout) {
    computes_ = rank < config.layout.ranks();
    stages_ = config.layout[Axis::kLayers];
    if (!computes_) return;
    group_ = mesh_.at(Axis::kStep, rank);
    stage_ = mesh_.at(Axis::kLayers, rank);
    steps_ = config.group(group_);
  }

 private:
  using Kind = Step::Kind;

  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  bool decodes() const { return rank() == config_.decoder(); }
  int begin() const { return static_cast<int>(steps_.begin); }
  int end() const { return static_cast<int>(steps_.end); }
  int groups() const { return config_.layout[Axis::kStep]; }

  // The rank of a group and stage that holds the same width as this one.
  int peer(int group, int stage) const {
    std::array<int, kAxes> at{};
    for (int axis = 0; axis < kAxes; ++axis) at[axis] = mesh_.at(static_cast<Axis>(axis), rank());
    at[static_cast<int>(Axis::kStep)] = group;
    at[static_cast<int>(Axis::kLayers)] = stage;
    return mesh_.rank_at(at);
  }

  SlotVersion rows(int segment, int step) const {
    return {{.kind = SlotKind::kSegment, .segment = segment % config_.live()},
            config_.turn(segment, step)};
  }
  Step message(Pass pass, int peer, Payload payload, const Range& tokens) const {
    Step step{.pass = pass, .tokens = tokens, .peer = peer, .payload = payload};
    step.bytes = config_.rows(pass, tokens, payload) *
                 (payload == Payload::kHidden ? config_.hidden_bytes : config_.latent_bytes);
    return step;
  }
  Step rows_message(int segment, int step, int peer) const {
    return message({.segment = segment, .step = step}, peer, Payload::kLatent, config_.tokens());
  }

  // Rows leave a group for the ranks of the next one that read or update them, or for the decoder.
  // They arrive at the step after the group's last one.
  bool arrives() const { return !computes_ || (group_ > 0 && (first() || last())); }
  int arrival_step() const { return computes_ ? begin() : config_.steps; }
  int source() const { return computes_ ? peer(group_ - 1, stages_ - 1) : config_.finisher(); }
  std::vector<int> receivers() const {
    if (group_ + 1 == groups())
      return config_.decodes_apart && rank() == config_.finisher() ? std::vector{config_.decoder()}
                                                                   : std::vector<int>{};
    std::vector<int> ranks{peer(group_ + 1, 0)};
    if (stages_ > 1) ranks.push_back(peer(group_ + 1, stages_ - 1));
    return ranks;
  }
  // A permit belongs to the turn that the rows it permits are made in.
  Step permit_message(int segment, int step, int peer) const {
    return {.pass = {.segment = segment, .step = step},
            .peer = peer,
            .payload = Payload::kControl,
            .bytes = kPermitBytes};
  }
  SlotVersion permit(SlotKind kind, int segment, int step, int receiver = -1) const {
    return {{.kind = kind, .segment = segment % config_.credits, .part = receiver},
            config_.turn(segment, step) - 1};
  }
  SlotVersion permit_of(int receiver, int segment, int step) const {
    return permit(SlotKind::kPermit, segment, step, receiver);
  }
  void receive_rows(Kind kind, int segment) {
    const SlotVersion to = rows(segment, arrival_step());
    if (kind == Kind::kPost) wait_for_send({.segment = segment}, to.slot);
    receive(kind, rows_message(segment, arrival_step(), source()), to);
  }
  // Makes room for a later segment than the one that this rank has computed with, and permits its
  // sender to send it.
  void grant(int segment) {
    const int later = segment + config_.credits;
    if (later >= config_.segments) return;
    receive_rows(Kind::kPost, later);
    send_permit(later, arrival_step(), source());
  }

  std::vector<SlotVersion> begins() const override { return {}; }
  std::vector<SlotVersion> ends() const override { return {}; }

  bool makes_sink(int segment, int step) const {
    return config_.sink_frames > 0 && step == begin() &&
           (segment == 0 || (config_.swaps() && segment == config_.swap_segment));
  }
  // The forwards of a turn. A segment keeps its place among those that go around the stages, so a
  // new one enters where one has left.
  std::vector<Forward> forwards(int turn) const {
    std::vector<Forward> made;
    const int every = config_.interval();
    const int from = std::max(0, ceil_div(turn - end() + 1, every));
    for (int segment = from; computes_ && segment < config_.segments; ++segment) {
      const int step = turn - segment * every;
      if (step < begin()) break;
      if (makes_sink(segment, step)) made.push_back({segment, step, true});
      made.push_back({segment, step, false});
    }
    const auto place = [&](const Forward& forward) { return forward.segment % stages_; };
    std::ranges::stable_sort(made, {}, place);
    return made;
  }
  int64_t forwards_before(int turn) const {
    int64_t count = 0;
    for (int step = begin(); step < end(); ++step)
      count += std::clamp(ceil_div(turn - step, config_.interval()), 0, config_.segments);
    const auto is_before = [&](int segment) { return config_.turn(segment, begin()) < turn; };
    return count + (config_.sink_frames > 0 && is_before(0)) +
           (config_.swaps() && is_before(config_.swap_segment));
  }

  void write_turn(int turn) override {
    if (turn == 0) start();
    const int segment = turn - config_.steps;
    if (decodes() && segment >= 0 && segment % config_.interval() == 0)
      decode(segment / config_.interval());
    if (config_.swaps() && computes_) exchange_sinks(turn);
    std::vector<Forward> todo = forwards(turn);
    number_ = forwards_before(turn);
    const size_t count = todo.size();
    for (int later = turn + 1; computes_ && later < config_.turns().end; ++later) {
      const std::vector<Forward> next = forwards(later);
      if (next.empty()) continue;
      todo.push_back(next.front());
      break;
    }
    if (number_ == 0 && count > 0) post_hidden(todo[0], 0);
    for (size_t i = 0; i < count; ++i) {
      const int order = static_cast<int>(i);
      // The first forward of a later turn has order 0.
      const auto post_next = [&] {
        if (i + 1 < todo.size()) post_hidden(todo[i + 1], i + 1 < count ? order + 1 : 0);
      };
      if (todo[i].sink)
        sink(todo[i], order, post_next);
      else
        denoise(todo[i], order, post_next);
    }
    if (turn + 1 == config_.turns().end) wait_for_sends({.step = turn});
  }

  void start() {
    if (computes_) add({.kind = Kind::kLoad});
    for (int segment = 0; arrives() && segment < std::min(config_.credits, config_.segments);
         ++segment)
      receive_rows(Kind::kPost, segment);
  }

  BlockRange layers() const { return stage_blocks(config_.layers, stages_, stage_); }
  // A stage sends the buffer that it has received, because hidden rows change in place; so another
  // one can be filled while that one is in use.
  SlotVersion hidden(const Forward& forward, int order, int64_t number, int segments) const {
    return {buffer_slot(number % (1 + !first() + !last())),
            config_.turn(forward.segment, forward.step), segments, order};
  }
  Pass pass(const Forward& forward) const {
    return {.segment = forward.segment,
            .step = forward.step,
            .micro = forward.sink ? StreamPlanConfig::kSinkPass : 0};
  }
  Range tokens(const Forward& forward) const {
    return forward.sink ? config_.sink_tokens() : config_.tokens();
  }
  Step hidden_message(const Forward& forward, int stage) const {
    return message(pass(forward), peer(group_, stage), Payload::kHidden, tokens(forward));
  }
  // Posts the receive of the forward with number number_.
  void post_hidden(const Forward& forward, int order) {
    if (first()) return;
    const SlotVersion in = hidden(forward, order, number_, layers().begin);
    wait_for_send(pass(forward), in.slot);
    receive(Kind::kPost, hidden_message(forward, stage_ - 1), in);
  }

  // Computes this stage's segments of a forward; the first stage reads `latent`. Returns what it
  // made.
  template <class PostNext>
  void compute(const Forward& forward, int order, const SlotVersion& latent,
               const std::optional<SlotVersion>& velocity, PostNext&& post_next) {
    Step step{.kind = Kind::kCompute,
              .pass = pass(forward),
              .blocks = layers(),
              .tokens = tokens(forward),
              .reads = {latent}};
    if (!first()) {
      step.reads = {hidden(forward, order, number_, layers().begin)};
      receive(Kind::kAwait, hidden_message(forward, stage_ - 1), step.reads[0]);
    }
    if (!last()) step.writes = {hidden(forward, order, number_, layers().end)};
    if (last() && velocity) step.writes = {*velocity};
    const std::vector<SlotVersion> made = step.writes;
    ++number_;
    post_next();
    if (!last()) wait_for_send(step.pass, made[0].slot);
    add(std::move(step));
    if (!last()) send(hidden_message(forward, stage_ + 1), made[0]);
  }

  // The sink of a group, for use at `segment`.
  SlotVersion sink_rows(int group, int segment) const {
    return {{.kind = SlotKind::kSink, .part = group},
            config_.turn(segment, static_cast<int>(config_.group(group).begin))};
  }
  Step sink_message(int peer) const {
    return message({.segment = config_.swap_segment, .micro = StreamPlanConfig::kSinkPass}, peer,
                   Payload::kLatent, config_.sink_tokens());
  }
  int sink_source() const { return peer(groups() - 1, stages_ - 1); }
  template <class PostNext>
  void sink(const Forward& forward, int order, PostNext&& post_next) {
    const SlotVersion rows = sink_rows(group_, forward.segment);
    const bool sent = sink_source() != rank();
    if (first() && forward.segment == 0)
      add({.kind = Kind::kEnter, .pass = pass(forward), .writes = {rows}});
    else if (first() && sent)
      receive(Kind::kAwait, sink_message(sink_source()), rows);
    compute(forward, order, rows, std::nullopt, post_next);
  }
  // Segment 0 is done: its first frames go to the first stage of every group. Messages between two
  // ranks are received in the order in which they are sent, so one that comes among permits is
  // posted a turn sooner: these are posted before the turn that sends them.
  void exchange_sinks(int turn) {
    const bool source = sink_source() == rank();
    if (first() && !source && turn == config_.steps - (stages_ == 1))
      receive(Kind::kPost, sink_message(sink_source()), sink_rows(group_, config_.swap_segment));
    if (source && turn == config_.steps) send_sinks();
  }
  void send_sinks() {
    Step step{.kind = Kind::kEnter,
              .pass = {.segment = config_.swap_segment, .micro = StreamPlanConfig::kSinkPass},
              .tokens = config_.sink_tokens(),
              .reads = {rows(0, config_.steps)}};
    for (int group = 0; group < groups(); ++group)
      step.writes.push_back(sink_rows(group, config_.swap_segment));
    add(step);
    for (int group = 0; group < groups(); ++group)
      if (peer(group, 0) != rank()) send(sink_message(peer(group, 0)), step.writes[group]);
  }

  template <class PostNext>
  void denoise(const Forward& forward, int order, PostNext&& post_next) {
    const auto [segment, step, is_sink] = forward;
    const SlotVersion in = rows(segment, step),
                      velocity{velocity_slot(0), in.turn, config_.layers, order};
    const bool enters = step == begin();
    const auto enter = [&] {
      if (enters && group_ == 0 && (first() || last()))
        add({.kind = Kind::kEnter,
             .pass = pass(forward),
             .reads = await_last_stage(forward.segment),
             .writes = {in}});
    };
    if (first()) enter();
    if (enters && arrives()) receive_rows(Kind::kAwait, segment);
    if (!enters && first() && !last())
      receive(Kind::kAwait, rows_message(segment, step, peer(group_, stages_ - 1)), in);
    compute(forward, order, in, velocity, [&] {
      // The last stage learns of a segment from its hidden rows.
      if (!first()) enter();
      post_next();
    });
    if (first() && !last() && step + 1 < end())
      receive(Kind::kPost, rows_message(segment, step + 1, peer(group_, stages_ - 1)),
              rows(segment, step + 1));
    if (last()) update(forward, velocity);
    if (enters && arrives()) grant(segment);
    if (is_one_way()) let_enter(segment);
  }

  // Nothing returns to the first stage of a first group of one step, which so would enter segments
  // as fast as it can. The last stage permits it to.
  bool is_one_way() const {
    return group_ == 0 && stages_ > 1 && end() - begin() == 1 && (first() || last());
  }
  std::vector<SlotVersion> await_last_stage(int segment) {
    if (!first() || !is_one_way() || segment < config_.credits) return {};
    const SlotVersion word = permit_of(0, segment, 1);
    receive(Kind::kAwait, permit_message(segment, 1, peer(group_, stages_ - 1)), word);
    return {word};
  }
  void let_enter(int segment) {
    const int later = segment + config_.credits;
    if (later >= config_.segments) return;
    if (first())
      return receive(Kind::kPost, permit_message(later, 1, peer(group_, stages_ - 1)),
                     permit_of(0, later, 1));
    send_permit(later, 1, peer(group_, 0));
  }
  void send_permit(int segment, int step, int peer) {
    const SlotVersion word = permit(SlotKind::kGranted, segment, step);
    const Step message = permit_message(segment, step, peer);
    wait_for_send(message.pass, word.slot);
    add({.kind = Kind::kWord, .pass = message.pass, .writes = {word}});
    send(message, word);
  }

  void update(const Forward& forward, const SlotVersion& velocity) {
    const auto [segment, step, is_sink] = forward;
    const SlotVersion made = rows(segment, step + 1);
    const bool leaves = step + 1 == end();
    const std::vector<int> to = leaves ? receivers() : std::vector<int>{};
    Step update{.kind = Kind::kUpdate,
                .pass = pass(forward),
                .tokens = config_.tokens(),
                .reads = {rows(segment, step), velocity}};
    if (!leaves || !to.empty() || decodes() || (config_.swaps() && segment == 0))
      update.writes = {made};
    for (int i = 0; i < std::ssize(to) && segment >= config_.credits; ++i) {
      update.reads.push_back(permit_of(i, segment, step + 1));
      receive(Kind::kAwait, permit_message(segment, step + 1, to[i]), update.reads.back());
    }
    wait_for_send(update.pass, made.slot);
    add(std::move(update));
    if (!leaves && !first()) send(rows_message(segment, step + 1, peer(group_, 0)), made);
    const int later = segment + config_.credits;
    for (int i = 0; i < std::ssize(to); ++i) {
      send(rows_message(segment, step + 1, to[i]), made);
      if (later < config_.segments)
        receive(Kind::kPost, permit_message(later, step + 1, to[i]), permit_of(i, later, step + 1));
    }
  }

  void decode(int segment) {
    if (!computes_) receive_rows(Kind::kAwait, segment);
    add({.kind = Kind::kDecode,
         .pass = {.segment = segment, .step = config_.steps - 1},
         .tokens = config_.tokens(),
         .reads = {rows(segment, config_.steps)}});
    if (!computes_) grant(segment);
  }

  const StreamPlanConfig& config_;
  const Mesh mesh_;
  bool computes_;
  int stages_, group_ = 0, stage_ = 0;
  Range steps_{};
  int64_t number_ = 0;  // of the next forward
};

}  // namespace

// The segments that are under way at a time have different ranks, and the first one is done before
// its frames are the sink of another.
int StreamPlanConfig::interval() const {
  const int ways = layout[Axis::kStep] * layout[Axis::kLayers];
  return std::max(ceil_div(steps, ways), swaps() ? ceil_div(steps, swap_segment) : 1);
}

int StreamPlanConfig::finisher() const {
  std::array<int, kAxes> at{};
  for (const Axis axis : {Axis::kStep, Axis::kLayers})
    at[static_cast<int>(axis)] = layout[axis] - 1;
  return Mesh(layout).rank_at(at);
}

Plan plan_stream(const StreamPlanConfig& config, const Range& turns, int rank) {
  const Range all = config.turns();
  const Layout& layout = config.layout;
  CHECK(turns.begin >= all.begin && turns.begin < turns.end && turns.end <= all.end, "turns",
        to_string(turns), "of", to_string(all));
  const int seams = layout[Axis::kTensor] * layout[Axis::kUlysses];
  CHECK(layout.ranks() == layout[Axis::kStep] * layout[Axis::kLayers] * seams, to_string(layout));
  CHECK(layout[Axis::kUlysses] == 1 || layout[Axis::kLayers] == 1, to_string(layout));
  CHECK(layout[Axis::kStep] <= config.steps && config.segments >= 1 && config.credits >= 1, "steps",
        config.steps, "blocks", config.segments, "credits", config.credits);
  return StreamWriter(config, rank).write(turns, all);
}

std::vector<Plan> plan_stream(const StreamPlanConfig& config) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < config.ranks(); ++rank)
    plans.push_back(plan_stream(config, config.turns(), rank));
  return plans;
}

PlanRules stream_rules(const StreamPlanConfig& config) {
  return {.bytes = [&config](const Step& message) {
    if (message.payload == Payload::kControl) return kPermitBytes;
    const int64_t rows = config.rows(message.pass, message.tokens, message.payload);
    return rows * (message.payload == Payload::kHidden ? config.hidden_bytes : config.latent_bytes);
  }};
}

}  // namespace weft
