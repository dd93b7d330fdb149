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

// A forward: of step `step` of a block, or of the sink before the first step of a group.
struct Forward {
  int block, step;
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

  SlotVersion rows(int block, int step) const {
    return {{.kind = SlotKind::kBlock, .block = block % config_.live()}, config_.turn(block, step)};
  }
  Step message(Pass pass, int peer, Payload payload, const Range& tokens) const {
    Step step{.pass = pass, .tokens = tokens, .peer = peer, .payload = payload};
    step.bytes = config_.rows(pass, tokens, payload) *
                 (payload == Payload::kHidden ? config_.hidden_bytes : config_.latent_bytes);
    return step;
  }
  Step rows_message(int block, int step, int peer) const {
    return message({.clip = block, .step = step}, peer, Payload::kLatent, config_.tokens());
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
  Step permit_message(int block, int step, int peer) const {
    return {.pass = {.clip = block, .step = step},
            .peer = peer,
            .payload = Payload::kControl,
            .bytes = kPermitBytes};
  }
  SlotVersion permit(SlotKind kind, int block, int step, int receiver = -1) const {
    return {{.kind = kind, .block = block % config_.credits, .part = receiver},
            config_.turn(block, step) - 1};
  }
  SlotVersion permit_of(int receiver, int block, int step) const {
    return permit(SlotKind::kPermit, block, step, receiver);
  }
  void receive_rows(Kind kind, int block) {
    const SlotVersion to = rows(block, arrival_step());
    if (kind == Kind::kPost) wait_for_send({.clip = block}, to.slot);
    receive(kind, rows_message(block, arrival_step(), source()), to);
  }
  // Makes room for a later block than the one that this rank has computed with, and permits its
  // sender to send it.
  void grant(int block) {
    const int later = block + config_.credits;
    if (later >= config_.blocks) return;
    receive_rows(Kind::kPost, later);
    send_permit(later, arrival_step(), source());
  }

  std::vector<SlotVersion> begins() const override { return {}; }
  std::vector<SlotVersion> ends() const override { return {}; }

  bool makes_sink(int block, int step) const {
    return config_.sink_frames > 0 && step == begin() &&
           (block == 0 || (config_.swaps() && block == config_.swap_block));
  }
  // The forwards of a turn. A block keeps its place among those that go around the stages, so a new
  // one enters where one has left.
  std::vector<Forward> forwards(int turn) const {
    std::vector<Forward> made;
    const int every = config_.interval();
    const int from = std::max(0, ceil_div(turn - end() + 1, every));
    for (int block = from; computes_ && block < config_.blocks; ++block) {
      const int step = turn - block * every;
      if (step < begin()) break;
      if (makes_sink(block, step)) made.push_back({block, step, true});
      made.push_back({block, step, false});
    }
    const auto place = [&](const Forward& forward) { return forward.block % stages_; };
    std::ranges::stable_sort(made, {}, place);
    return made;
  }
  int64_t forwards_before(int turn) const {
    int64_t count = 0;
    for (int step = begin(); step < end(); ++step)
      count += std::clamp(ceil_div(turn - step, config_.interval()), 0, config_.blocks);
    const auto is_before = [&](int block) { return config_.turn(block, begin()) < turn; };
    return count + (config_.sink_frames > 0 && is_before(0)) +
           (config_.swaps() && is_before(config_.swap_block));
  }

  void write_turn(int turn) override {
    if (turn == 0) start();
    const int block = turn - config_.steps;
    if (decodes() && block >= 0 && block % config_.interval() == 0)
      decode(block / config_.interval());
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
    for (int block = 0; arrives() && block < std::min(config_.credits, config_.blocks); ++block)
      receive_rows(Kind::kPost, block);
  }

  BlockRange layers() const { return stage_blocks(config_.layers, stages_, stage_); }
  // A stage sends the buffer that it has received, because hidden rows change in place; so another
  // one can be filled while that one is in use.
  SlotVersion hidden(const Forward& forward, int order, int64_t number, int blocks) const {
    return {buffer_slot(number % (1 + !first() + !last())),
            config_.turn(forward.block, forward.step), blocks, order};
  }
  Pass pass(const Forward& forward) const {
    return {.clip = forward.block,
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

  // Computes this stage's blocks of a forward; the first stage reads `latent`. Returns what it
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

  // The sink of a group, for use at `block`.
  SlotVersion sink_rows(int group, int block) const {
    return {{.kind = SlotKind::kSink, .part = group},
            config_.turn(block, static_cast<int>(config_.group(group).begin))};
  }
  Step sink_message(int peer) const {
    return message({.clip = config_.swap_block, .micro = StreamPlanConfig::kSinkPass}, peer,
                   Payload::kLatent, config_.sink_tokens());
  }
  int sink_source() const { return peer(groups() - 1, stages_ - 1); }
  template <class PostNext>
  void sink(const Forward& forward, int order, PostNext&& post_next) {
    const SlotVersion rows = sink_rows(group_, forward.block);
    const bool sent = sink_source() != rank();
    if (first() && forward.block == 0)
      add({.kind = Kind::kEnter, .pass = pass(forward), .writes = {rows}});
    else if (first() && sent)
      receive(Kind::kAwait, sink_message(sink_source()), rows);
    compute(forward, order, rows, std::nullopt, post_next);
  }
  // Block 0 is done: its first frames go to the first stage of every group. Messages between two
  // ranks are received in the order in which they are sent, so one that comes among permits is
  // posted a turn sooner: these are posted before the turn that sends them.
  void exchange_sinks(int turn) {
    const bool source = sink_source() == rank();
    if (first() && !source && turn == config_.steps - (stages_ == 1))
      receive(Kind::kPost, sink_message(sink_source()), sink_rows(group_, config_.swap_block));
    if (source && turn == config_.steps) send_sinks();
  }
  void send_sinks() {
    Step step{.kind = Kind::kEnter,
              .pass = {.clip = config_.swap_block, .micro = StreamPlanConfig::kSinkPass},
              .tokens = config_.sink_tokens(),
              .reads = {rows(0, config_.steps)}};
    for (int group = 0; group < groups(); ++group)
      step.writes.push_back(sink_rows(group, config_.swap_block));
    add(step);
    for (int group = 0; group < groups(); ++group)
      if (peer(group, 0) != rank()) send(sink_message(peer(group, 0)), step.writes[group]);
  }

  template <class PostNext>
  void denoise(const Forward& forward, int order, PostNext&& post_next) {
    const auto [block, step, is_sink] = forward;
    const SlotVersion in = rows(block, step),
                      velocity{velocity_slot(0), in.turn, config_.layers, order};
    const bool enters = step == begin();
    const auto enter = [&] {
      if (enters && group_ == 0 && (first() || last()))
        add({.kind = Kind::kEnter,
             .pass = pass(forward),
             .reads = await_last_stage(forward.block),
             .writes = {in}});
    };
    if (first()) enter();
    if (enters && arrives()) receive_rows(Kind::kAwait, block);
    if (!enters && first() && !last())
      receive(Kind::kAwait, rows_message(block, step, peer(group_, stages_ - 1)), in);
    compute(forward, order, in, velocity, [&] {
      // The last stage learns of a block from its hidden rows.
      if (!first()) enter();
      post_next();
    });
    if (first() && !last() && step + 1 < end())
      receive(Kind::kPost, rows_message(block, step + 1, peer(group_, stages_ - 1)),
              rows(block, step + 1));
    if (last()) update(forward, velocity);
    if (enters && arrives()) grant(block);
    if (is_one_way()) let_enter(block);
  }

  // Nothing returns to the first stage of a first group of one step, which so would enter blocks as
  // fast as it can. The last stage permits it to.
  bool is_one_way() const {
    return group_ == 0 && stages_ > 1 && end() - begin() == 1 && (first() || last());
  }
  std::vector<SlotVersion> await_last_stage(int block) {
    if (!first() || !is_one_way() || block < config_.credits) return {};
    const SlotVersion word = permit_of(0, block, 1);
    receive(Kind::kAwait, permit_message(block, 1, peer(group_, stages_ - 1)), word);
    return {word};
  }
  void let_enter(int block) {
    const int later = block + config_.credits;
    if (later >= config_.blocks) return;
    if (first())
      return receive(Kind::kPost, permit_message(later, 1, peer(group_, stages_ - 1)),
                     permit_of(0, later, 1));
    send_permit(later, 1, peer(group_, 0));
  }
  void send_permit(int block, int step, int peer) {
    const SlotVersion word = permit(SlotKind::kGranted, block, step);
    const Step message = permit_message(block, step, peer);
    wait_for_send(message.pass, word.slot);
    add({.kind = Kind::kWord, .pass = message.pass, .writes = {word}});
    send(message, word);
  }

  void update(const Forward& forward, const SlotVersion& velocity) {
    const auto [block, step, is_sink] = forward;
    const SlotVersion made = rows(block, step + 1);
    const bool leaves = step + 1 == end();
    const std::vector<int> to = leaves ? receivers() : std::vector<int>{};
    Step update{.kind = Kind::kUpdate,
                .pass = pass(forward),
                .tokens = config_.tokens(),
                .reads = {rows(block, step), velocity}};
    if (!leaves || !to.empty() || decodes() || (config_.swaps() && block == 0))
      update.writes = {made};
    for (int i = 0; i < std::ssize(to) && block >= config_.credits; ++i) {
      update.reads.push_back(permit_of(i, block, step + 1));
      receive(Kind::kAwait, permit_message(block, step + 1, to[i]), update.reads.back());
    }
    wait_for_send(update.pass, made.slot);
    add(std::move(update));
    if (!leaves && !first()) send(rows_message(block, step + 1, peer(group_, 0)), made);
    const int later = block + config_.credits;
    for (int i = 0; i < std::ssize(to); ++i) {
      send(rows_message(block, step + 1, to[i]), made);
      if (later < config_.blocks)
        receive(Kind::kPost, permit_message(later, step + 1, to[i]), permit_of(i, later, step + 1));
    }
  }

  void decode(int block) {
    if (!computes_) receive_rows(Kind::kAwait, block);
    add({.kind = Kind::kDecode,
         .pass = {.clip = block, .step = config_.steps - 1},
         .tokens = config_.tokens(),
         .reads = {rows(block, config_.steps)}});
    if (!computes_) grant(block);
  }

  const StreamPlanConfig& config_;
  const Mesh mesh_;
  bool computes_;
  int stages_, group_ = 0, stage_ = 0;
  Range steps_{};
  int64_t number_ = 0;  // of the next forward
};

}  // namespace

// The blocks that are under way at a time have different ranks, and the first one is done before
// its frames are the sink of another.
int StreamPlanConfig::interval() const {
  const int ways = layout[Axis::kStep] * layout[Axis::kLayers];
  return std::max(ceil_div(steps, ways), swaps() ? ceil_div(steps, swap_block) : 1);
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
  CHECK(layout[Axis::kStep] <= config.steps && config.blocks >= 1 && config.credits >= 1, "steps",
        config.steps, "blocks", config.blocks, "credits", config.credits);
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
    const int64_t rows = config.rows(message.pass, message.tokens, message.payload);
    return message.payload == Payload::kControl  ? kPermitBytes
           : message.payload == Payload::kHidden ? rows * config.hidden_bytes
                                                 : rows * config.latent_bytes;
  }};
}

}  // namespace weft
