#include "parallel/schedule/segment_queue.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "kernels/check.h"
#include "parallel/schedule/plan_timing.h"
#include "parallel/schedule/plan_writer.h"

namespace weft {

namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);

// The skipped steps directly after a step.
int skips_behind(const QueuePlanConfig& config, int step) {
  int next = step + 1;
  while (next < static_cast<int>(config.steps.size()) && config.steps[next].skipped) ++next;
  return next - step - 1;
}
// The sets of a step: every segment of the queue has its own until the stretch of skipped steps
// after it ends.
int sets_of(const QueuePlanConfig& config, int step) {
  const int skips = config.steps[step].skipped ? 0 : skips_behind(config, step);
  return skips > 0 ? std::min(skips + 1, config.segments) : 0;
}

class QueueWriter final : public PlanWriter {
 public:
  // A writer of another rank only answers questions.
  QueueWriter(const QueuePlanConfig& config, int rank)
      : PlanWriter(rank, config.layout.ranks()),
        config_(config),
        mesh_(config.layout),
        stages_(config.layout[Axis::kLayers]),
        stage_(mesh_.at(Axis::kLayers, rank)),
        cfg_(config.layout[Axis::kCfg]),
        branch_(mesh_.at(Axis::kCfg, rank)),
        parts_(config.layout.sequence()),
        part_(mesh_.sequence_index(rank)) {
    for (const int segment : {0, 1})
      for (int part = 0; part < parts_; ++part) {
        const Range own = config.own(segment, part);
        has_own_[segment].push_back(own.size() > 0);
        for (int to = 0; to < parts_; ++to)
          is_before_[segment].push_back(intersection(prefix_tokens(config, to), own).size() > 0);
      }
  }

 private:
  using Kind = Step::Kind;

  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == stages_ - 1; }
  int steps() const { return static_cast<int>(config_.steps.size()); }
  bool computes(int branch) const { return cfg_ == 1 || branch == branch_; }
  bool computes_in(int step) const { return computes(0) || config_.steps[step].branches == 2; }
  bool decodes() const { return rank() == config_.decoder; }
  bool skipped(int step) const { return step < steps() && config_.steps[step].skipped; }

  int rank_at(int branch, int stage, int part) const {
    std::array<int, kAxes> at{};
    for (int axis = 0; axis < kAxes; ++axis) at[axis] = mesh_.at(static_cast<Axis>(axis), rank());
    at[static_cast<int>(Axis::kCfg)] = branch;
    at[static_cast<int>(Axis::kLayers)] = stage;
    at[static_cast<int>(Axis::kUlysses)] = part;
    return mesh_.rank_at(at);
  }
  // The rank that updates a part of a segment for this one: it computes the same branch and width.
  int updater(int part) const { return rank_at(branch_, stages_ - 1, part); }
  // The decoder takes its rows from such a rank, too.
  bool decoder_beside() const {
    return config_.decoder == rank_at(branch_, mesh_.at(Axis::kLayers, config_.decoder),
                                      mesh_.sequence_index(config_.decoder));
  }

  Pass pass(int segment, int step, int branch = 0) const {
    return {.prompt = branch ? 0 : config_.prompt(segment),
            .model = config_.steps[step].model,
            .branch = branch,
            .segment = segment,
            .step = step};
  }
  Step message(const Pass& pass, int peer, Payload payload, const Range& tokens) const {
    Step step{.pass = pass, .tokens = tokens, .peer = peer, .payload = payload};
    step.bytes =
        tokens.size() * (payload == Payload::kHidden ? config_.hidden_bytes : config_.latent_bytes);
    return step;
  }

  bool has_own(int segment, int part) const { return has_own_[segment > 0][part]; }
  // z_k^(j): the rows of segment k that belong to turn k + j.
  SlotVersion rows(int segment, int part, int turn) const {
    return {config_.segment_slot(segment, part), turn};
  }
  // Returns whether a rank of the first stage reads z_k^(j) as its own frames or as the frames
  // before.
  bool is_own(int segment, int part, int j, int of_part) const {
    return j < steps() && !skipped(j) && computes_in(j) && part == of_part &&
           has_own(segment, part);
  }
  bool is_prefix(int segment, int part, int j, int of_part) const {
    return j > 0 && segment + 1 < config_.segments && !skipped(j - 1) && computes_in(j - 1) &&
           is_before_[segment > 0][part * parts_ + of_part];
  }
  // Returns whether this rank, of the last stage, embeds its part of z_k^(j): the step is skipped,
  // or the one after it is, so that it keeps what the transformer blocks add.
  bool embeds(int segment, int j) const {
    return last() && j < steps() && (skipped(j) || skipped(j + 1)) && computes_in(j) &&
           has_own(segment, part_);
  }
  bool is_decoded(int segment, int part, int j) const {
    return j == steps() && has_own(segment, part);
  }
  // Returns whether this rank reads z_k^(j) of a part beside its update.
  bool reads(int segment, int part, int j) const {
    return (first() && (is_own(segment, part, j, part_) || is_prefix(segment, part, j, part_))) ||
           (part == part_ && embeds(segment, j)) || (decodes() && is_decoded(segment, part, j));
  }
  bool wanted(int segment, int j) const {
    bool any = embeds(segment, j) || (decoder_beside() && is_decoded(segment, part_, j));
    for (int to = 0; to < parts_; ++to)
      any = any || is_own(segment, part_, j, to) || is_prefix(segment, part_, j, to);
    return any;
  }
  // Returns whether this rank, of the last stage, updates its part of the segment in a step. It
  // does so as long as a rank needs the rows of a later step.
  bool updates(int segment, int step) const {
    for (int j = step + 1; last() && j <= steps(); ++j)
      if (wanted(segment, j)) return true;
    return false;
  }
  // Returns whether the rank `peer` sends this one the rows of a part for a turn.
  bool takes_from(int peer, int segment, int part, int turn) const {
    return peer == updater(part) && reads(segment, part, turn - segment);
  }
  bool holds(int segment, int part, int turn) const {
    const int j = turn - segment;
    return reads(segment, part, j) || (part == part_ && j < steps() && updates(segment, j));
  }

  std::vector<SlotVersion> begins() const override {
    std::vector<SlotVersion> held;
    const int turn = config_.first_turn;
    for (int segment = std::max(0, turn - steps()); segment < std::min(turn, config_.segments);
         ++segment)
      for (int part = 0; part < parts_; ++part)
        if (holds(segment, part, turn)) held.push_back(rows(segment, part, turn));
    const Range segments = config_.passes(turn);
    for (auto segment = static_cast<int>(segments.begin);
         segment < std::min<int>(turn, segments.end); ++segment)
      if (const int step = turn - segment; skipped(step))
        for (int branch = 0; branch < config_.steps[step].branches; ++branch) {
          const Pass kept = pass(segment, config_.computed(step), branch);
          if (computes(branch) && leaves_keys(segment, kept.step)) held.push_back(keys(kept));
          if (computes(branch) && embeds(segment, step)) held.push_back(added(kept));
        }
    return held;
  }
  std::vector<SlotVersion> ends() const override { return {}; }

  void enter(int segment) {
    Step step{.kind = Kind::kEnter, .pass = pass(segment, 0)};
    for (int part = 0; part < parts_; ++part)
      if (holds(segment, part, segment)) step.writes.push_back(rows(segment, part, segment));
    if (!step.writes.empty()) add(std::move(step));
  }

  bool arrives(int segment, int part, int turn) const {
    return updater(part) != rank() && turn > segment && turn > config_.first_turn;
  }
  Step rows_message(int segment, int part, int turn, int peer) const {
    return message(pass(segment, turn - segment - 1), peer, Payload::kLatent,
                   config_.own(segment, part));
  }
  void receive_rows(Kind kind, int segment, int part, int turn) {
    receive(kind, rows_message(segment, part, turn, updater(part)), rows(segment, part, turn));
  }
  // The rows that pass (k, turn - k) reads on the first stage.
  std::vector<SlotVersion> rows_read(int segment, int turn) const {
    std::vector<SlotVersion> read;
    if (is_own(segment, part_, turn - segment, part_)) read.push_back(rows(segment, part_, turn));
    for (int part = 0; part < parts_ && segment > 0; ++part)
      if (is_prefix(segment - 1, part, turn - segment + 1, part_))
        read.push_back(rows(segment - 1, part, turn));
    return read;
  }
  // Awaits the ones that another rank sends and that no earlier pass has read.
  void await_rows(int segment, int turn) {
    const int j = turn - segment;
    if (is_own(segment, part_, j, part_) && arrives(segment, part_, turn) &&
        !is_prefix(segment, part_, j, part_))
      receive_rows(Kind::kAwait, segment, part_, turn);
    for (int part = 0; part < parts_ && segment > 0; ++part)
      if (is_prefix(segment - 1, part, j + 1, part_) && arrives(segment - 1, part, turn))
        receive_rows(Kind::kAwait, segment - 1, part, turn);
  }
  void post_rows(int segment, int turn) {
    for (int part = 0; part < parts_; ++part)
      if (arrives(segment, part, turn) && reads(segment, part, turn - segment))
        receive_rows(Kind::kPost, segment, part, turn);
  }

  std::vector<Pass> forwards(int turn) const {
    std::vector<Pass> made;
    const Range segments = config_.passes(turn);
    for (auto k = static_cast<int>(segments.end) - 1; k >= segments.begin; --k)
      for (int branch = 0; branch < config_.steps[turn - k].branches; ++branch)
        if (computes(branch) && !skipped(turn - k)) made.push_back(pass(k, turn - k, branch));
    return made;
  }
  bool uses(int turn, int model) const {
    const Range segments = config_.passes(turn);
    for (auto k = static_cast<int>(segments.begin); k < segments.end; ++k)
      if (config_.steps[turn - k].model == model && computes_in(turn - k)) return true;
    return false;
  }
  // A pass is counted within its turn, from the tail of the queue on.
  int order(const Pass& pass) const {
    const auto tail = static_cast<int>(config_.passes(pass.segment + pass.step).end) - 1;
    return 2 * (tail - pass.segment) + pass.branch;
  }
  // The number of forwards of this rank in the turns before, which chooses the hidden buffer.
  int64_t forwards_before(int turn) const {
    int64_t count = 0;
    std::vector<int64_t> up_to{0};  // forwards of a segment in its first steps
    for (int i = 0; i < steps(); ++i) {
      const int made = cfg_ == 1 ? config_.steps[i].branches : static_cast<int>(computes_in(i));
      up_to.push_back(up_to.back() + (skipped(i) ? 0 : made));
    }
    for (int before = config_.first_turn; before < turn; ++before) {
      const Range segments = config_.passes(before);
      if (segments.size() > 0)
        count += up_to[before - segments.begin + 1] - up_to[before - segments.end + 1];
    }
    return count;
  }
  BlockRange layers(const Pass& pass) const {
    return stage_blocks(config_.layers[pass.model], stages_, stage_);
  }

  SlotVersion word(int turn) const { return {kWordSlot, turn}; }
  Step control_message(int turn, int peer) const {
    return {
        .pass = {.step = turn}, .peer = peer, .payload = Payload::kControl, .bytes = kWordBytes};
  }
  // Makes the word of the next turn on the root. It travels while the turn computes.
  void make_word(int turn) {
    Step step{.kind = Kind::kWord, .pass = {.step = turn}};
    sends_word_ = rank() == 0 && turn + 1 < config_.turns().end;
    if (turn > config_.first_turn) step.reads = {word(turn)};
    if (sends_word_) step.writes = {word(turn + 1)};
    wait_for_send(step.pass, kWordSlot);
    if (!step.reads.empty() || !step.writes.empty()) add(std::move(step));
  }
  // The root sends it after its first pass, whose hidden rows another rank has awaited before, or
  // at the end of a turn without one.
  void send_word(int turn) {
    for (int to = 1; to < ranks() && sends_word_; ++to)
      send(control_message(turn, to), word(turn + 1));
    sends_word_ = false;
  }
  void receive_word(Kind kind, int turn) {
    if (config_.control && rank() != 0 && turn + 1 < config_.turns().end)
      receive(kind, control_message(turn, 0), word(turn + 1));
  }

  void write_turn(int turn) override {
    if (config_.control) make_word(turn);
    if (turn < config_.segments) enter(turn);
    for (int model = 0; model < static_cast<int>(config_.layers.size()); ++model)
      if (uses(turn, model) && (turn == config_.first_turn || !uses(turn - 1, model)))
        add({.kind = Kind::kLoad, .pass = {.model = model, .step = turn}});
    number_ = forwards_before(turn);
    const Range segments = config_.passes(turn);
    std::vector<Pass> todo = forwards(turn);
    if (!todo.empty() && (turn == config_.first_turn || forwards(turn - 1).empty()))
      post_hidden(todo.front());
    if (turn + 1 < config_.turns().end)  // its first forward is posted after the last one of this
      if (const std::vector<Pass> next = forwards(turn + 1); !next.empty())
        todo.push_back(next.front());
    receive_word(Kind::kPost, turn);
    auto next = todo.begin();
    for (auto k = static_cast<int>(segments.end) - 1; k >= segments.begin; --k) {
      post_velocity(k, turn - k);
      if (first() && computes_in(turn - k)) await_rows(k, turn);
      for (int branch = 0; branch < config_.steps[turn - k].branches; ++branch)
        if (computes(branch) && skipped(turn - k)) {
          reuse(pass(k, turn - k, branch));
        } else if (computes(branch)) {
          const Pass& present = *next++;
          forward(turn, present, next == todo.end() ? std::nullopt : std::optional(*next));
        }
      exchange_velocities(k, turn - k);
      if (updates(k, turn - k)) update(k, turn - k);
      post_rows(k, turn + 1);
    }
    send_word(turn);
    if (decodes() && turn >= steps()) decode(turn - steps(), turn);
    receive_word(Kind::kAwait, turn);
    if (turn + 1 == config_.turns().end) wait_for_sends({.step = turn});
  }

  // A stage sends the buffer that it has received, because hidden rows change in place; so a third
  // one can be filled while the second one is in use.
  SlotVersion hidden(const Pass& pass, int64_t number, int segments) const {
    const int buffers = 1 + !first() + !last();
    return {buffer_slot(number % buffers), pass.segment + pass.step, segments, order(pass)};
  }
  Step hidden_message(const Pass& pass, int stage) const {
    return message(pass, rank_at(branch_, stage, part_), Payload::kHidden, config_.part(part_));
  }
  // Posts the receive of the forward with number number_.
  void post_hidden(const Pass& pass) {
    if (first()) return;
    const SlotVersion in = hidden(pass, number_, layers(pass).begin);
    wait_for_send(pass, in.slot);
    receive(Kind::kPost, hidden_message(pass, stage_ - 1), in);
  }

  SlotVersion velocity(const Pass& pass) const {
    return {velocity_slot(pass.branch), pass.segment + pass.step, config_.layers[pass.model],
            order(pass)};
  }
  // The keys that a pass leaves for one of the segment before it.
  SlotVersion keys(const Pass& pass) const {
    return {keys_slot(config_.kept_set(pass.segment, pass.step), pass.branch),
            pass.segment + pass.step, layers(pass).end, order(pass)};
  }
  // The rows that the transformer blocks add in a pass before a skipped one.
  SlotVersion added(const Pass& pass) const {
    return {added_slot(config_.kept_set(pass.segment, pass.step), pass.branch),
            pass.segment + pass.step, config_.layers[pass.model], order(pass)};
  }
  // The step whose keys pass (k, i) reads of segment k + 1, if any. Another expert's keys are
  // dropped.
  std::optional<int> right_step(int segment, int step) const {
    if (config_.context_frames == 0 || step == 0 || skipped(step) ||
        segment + 1 >= config_.segments)
      return std::nullopt;
    const int from = config_.computed(step - 1);
    if (config_.steps[from].model != config_.steps[step].model) return std::nullopt;
    return from;
  }
  // Returns whether a pass that is not skipped leaves keys.
  bool leaves_keys(int segment, int step) const {
    const int reader = step + 1 + skips_behind(config_, step);
    return segment > 0 && reader < steps() && right_step(segment - 1, reader).has_value();
  }
  // A pass may read what passes of earlier turns have kept.
  static void state_age(Step& step) {
    for (const SlotVersion& read : step.reads)
      step.stale = std::max(step.stale, step.pass.segment + step.pass.step - read.turn);
  }

  void forward(int turn, const Pass& pass, const std::optional<Pass>& next) {
    const BlockRange layers = this->layers(pass);
    Step step{
        .kind = Kind::kCompute, .pass = pass, .blocks = layers, .tokens = config_.part(part_)};
    if (first()) {
      step.reads = rows_read(pass.segment, turn);
    } else {
      step.reads = {hidden(pass, number_, layers.begin)};
      receive(Kind::kAwait, hidden_message(pass, stage_ - 1), step.reads[0]);
    }
    const SlotVersion out = last() ? velocity(pass) : hidden(pass, number_, layers.end);
    ++number_;
    if (next) post_hidden(*next);
    const bool keeps = embeds(pass.segment, pass.step);
    if (keeps && !first()) step.reads.push_back(rows(pass.segment, part_, turn));
    if (const std::optional<int> right = right_step(pass.segment, pass.step))
      step.reads.push_back(keys(this->pass(pass.segment + 1, *right, pass.branch)));
    state_age(step);
    if (!last() || updates(pass.segment, pass.step) || sends_velocity(pass.segment, pass.step))
      step.writes.push_back(out);
    if (leaves_keys(pass.segment, pass.step)) step.writes.push_back(keys(pass));
    if (keeps) step.writes.push_back(added(pass));
    wait_for_send(pass, out.slot);
    add(std::move(step));
    if (!last()) send(hidden_message(pass, stage_ + 1), out);
    send_word(turn);
  }

  // A skipped pass: the last stage alone has something to do.
  void reuse(const Pass& pass) {
    if (!embeds(pass.segment, pass.step)) return;
    Step step{.kind = Kind::kCompute,
              .pass = pass,
              .blocks = BlockRange::all(config_.layers[pass.model]),
              .tokens = config_.own(pass.segment, part_),
              .reuses = true,
              .reads = {rows(pass.segment, part_, pass.segment + pass.step),
                        added(this->pass(pass.segment, config_.computed(pass.step), pass.branch))}};
    state_age(step);
    if (updates(pass.segment, pass.step) || sends_velocity(pass.segment, pass.step))
      step.writes.push_back(velocity(pass));
    wait_for_send(pass, velocity(pass).slot);
    add(std::move(step));
    send_word(pass.segment + pass.step);
  }

  Step velocity_message(const Pass& pass) const {
    return message(pass, rank_at(1 - branch_, stage_, part_), Payload::kVelocity,
                   config_.own(pass.segment, part_));
  }
  // Returns whether this branch's velocity goes to the other rank; then, whether the other's comes
  // here.
  bool sends_velocity(int segment, int step) const {
    return cfg_ == 2 && last() && computes_in(step) &&
           other(rank_at(1 - branch_, stage_, part_)).updates(segment, step);
  }
  bool takes_velocity(int segment, int step) const {
    return cfg_ == 2 && 1 - branch_ < config_.steps[step].branches && updates(segment, step);
  }
  void post_velocity(int segment, int step) {
    if (!takes_velocity(segment, step)) return;
    const Pass other = pass(segment, step, 1 - branch_);
    receive(Kind::kPost, velocity_message(other), velocity(other));
  }
  // Every branch's last stage needs both velocities for its update.
  void exchange_velocities(int segment, int step) {
    const Pass mine = pass(segment, step, branch_);
    if (sends_velocity(segment, step)) send(velocity_message(mine), velocity(mine));
    if (!takes_velocity(segment, step)) return;
    const Pass other = pass(segment, step, 1 - branch_);
    receive(Kind::kAwait, velocity_message(other), velocity(other));
  }

  void update(int segment, int i) {
    const int turn = segment + i;
    const SlotVersion made = rows(segment, part_, turn + 1);
    Step step{.kind = Kind::kUpdate,
              .pass = pass(segment, i),
              .tokens = config_.own(segment, part_),
              .reads = {rows(segment, part_, turn)},
              .writes = {made}};
    for (int branch = 0; branch < config_.steps[i].branches; ++branch)
      step.reads.push_back(velocity(pass(segment, i, branch)));
    wait_for_send(step.pass, made.slot);
    add(std::move(step));
    for (int to = 0; to < ranks(); ++to)
      if (to != rank() && other(to).takes_from(rank(), segment, part_, turn + 1))
        send(rows_message(segment, part_, turn + 1, to), made);
  }

  void decode(int segment, int turn) {
    Step step{
        .kind = Kind::kDecode, .pass = pass(segment, steps() - 1), .tokens = config_.own(segment)};
    for (int part = 0; part < parts_; ++part) {
      if (!is_decoded(segment, part, steps())) continue;
      const bool read_before = first() && is_prefix(segment, part, steps(), part_);
      if (arrives(segment, part, turn) && !read_before)
        receive_rows(Kind::kAwait, segment, part, turn);
      step.reads.push_back(rows(segment, part, turn));
    }
    add(std::move(step));
  }

  // The writer of another rank, for questions.
  const QueueWriter& other(int rank) const {
    std::unique_ptr<QueueWriter>& found = others_[rank];
    if (!found) found = std::make_unique<QueueWriter>(config_, rank);
    return *found;
  }

  const QueuePlanConfig& config_;
  const Mesh mesh_;
  const int stages_, stage_, cfg_, branch_, parts_, part_;
  int64_t number_ = 0;  // of the next forward
  bool sends_word_ = false;
  mutable std::map<int, std::unique_ptr<QueueWriter>> others_;
  // For segment 0, and for all later ones, which are alike: by part, if the part has own rows; by
  // part and the part of a reader, if they are among the frames before that it reads.
  std::array<std::vector<bool>, 2> has_own_, is_before_;
};

}  // namespace

Range QueuePlanConfig::passes(int turn) const {
  const int begin = std::max(0, turn - static_cast<int>(steps.size()) + 1);
  return {begin, std::max(begin, std::min(turn + 1, segments))};
}

Range QueuePlanConfig::kept_segments(int turn) const {
  return {std::max<int64_t>(0, turn - std::ssize(steps)), std::min(turn, segments)};
}

Range QueuePlanConfig::stepped_segments(int turn) const {
  const Range kept = kept_segments(turn);
  return {kept.begin + (turn >= std::ssize(steps)), kept.end};
}

Range QueuePlanConfig::own(int segment, int part) const {
  return intersection(own(segment), this->part(part));
}

SlotId QueuePlanConfig::segment_slot(int segment, int part) const {
  const int live = std::min(static_cast<int>(steps.size()), segments) + 1;
  return {.kind = SlotKind::kSegment, .segment = segment % live, .part = part};
}

int QueuePlanConfig::prompt(int segment) const {
  return prompts.empty() ? 0 : prompts[std::min<size_t>(segment, prompts.size() - 1)];
}

int QueuePlanConfig::computed(int step) const {
  while (steps[step].skipped) --step;
  return step;
}

int QueuePlanConfig::kept_sets() const {
  int sets = 1;
  for (int step = 0; step < static_cast<int>(steps.size()); ++step) sets += sets_of(*this, step);
  return sets;
}

int QueuePlanConfig::kept_set(int segment, int step) const {
  const int own = sets_of(*this, step);
  if (own == 0) return 0;
  int set = 1 + segment % own;
  while (step-- > 0) set += sets_of(*this, step);
  return set;
}

int QueuePlanConfig::longest_skip() const {
  int longest = 0;
  for (int step = 0; step < static_cast<int>(steps.size()); ++step)
    longest = std::max(longest, skips_behind(*this, step));
  return longest;
}

Range prefix_tokens(const QueuePlanConfig& config, int part) {
  const Range rows = intersection(config.part(part), {0, config.own(1).begin});
  const int64_t by = config.segment_frames * config.frame_tokens;
  return {rows.begin + by, rows.end + by};
}

Plan plan_queue(const QueuePlanConfig& config, const Range& turns, int rank) {
  const Range all = config.turns();
  CHECK(turns.begin >= all.begin && turns.begin < turns.end && turns.end <= all.end, "turns",
        to_string(turns), "of", to_string(all));
  CHECK(config.layout[Axis::kData] == 1 && config.layout.blocks() == 1, to_string(config.layout));
  CHECK(!config.steps.empty() && config.segments >= 1 && config.context_frames >= 0 &&
            config.context_frames <= config.segment_frames,
        "steps", config.steps.size(), "blocks", config.segments, "frames", config.segment_frames,
        config.context_frames);
  CHECK(!config.steps[0].skipped, "step 0 is skipped");
  CHECK(config.decoder >= 0 && config.decoder < config.layout.ranks(), "decoder", config.decoder);
  return QueueWriter(config, rank).write(turns, all);
}

std::vector<Plan> plan_queue(const QueuePlanConfig& config, const Range& turns) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < config.layout.ranks(); ++rank)
    plans.push_back(plan_queue(config, turns, rank));
  return plans;
}

std::vector<Plan> plan_queue(const QueuePlanConfig& config) {
  return plan_queue(config, config.turns());
}

PlanRules queue_rules(const QueuePlanConfig& config) {
  return {.bytes =
              [&config](const Step& message) {
                const int64_t tokens = message.tokens.size();
                return message.payload == Payload::kControl  ? kWordBytes
                       : message.payload == Payload::kHidden ? tokens * config.hidden_bytes
                                                             : tokens * config.latent_bytes;
              },
          .stale = config.longest_skip(),
          .experts = static_cast<int>(config.layers.size())};
}

std::vector<std::vector<int64_t>> slots_of(std::span<const Plan> plans) {
  const auto times = time_plans(plans, {}, {}, [](const Step& step, int) {
    return step.kind == Step::Kind::kCompute && !step.reuses ? 1.0 : 0.0;
  });
  std::vector<std::vector<int64_t>> begun(times.size());
  for (size_t rank = 0; rank < times.size(); ++rank)
    for (size_t step = 0; step < times[rank].size(); ++step) {
      // A step that awaits a message begins, in this count, when the message is there.
      const StepTime& time = times[rank][step];
      const Step& of = plans[rank].steps[step];
      const bool computes = of.kind == Step::Kind::kCompute && !of.reuses;
      begun[rank].push_back(static_cast<int64_t>(computes ? time.begin_s : time.end_s));
    }
  return begun;
}

}  // namespace weft
