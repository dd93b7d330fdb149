#include "parallel/schedule/interpreter.h"

#include <optional>

#include "kernels/check.h"
#include "kernels/meter.h"

namespace weft {

const TensorView& Slots::make(const SlotId& slot, DType dtype, int64_t rows, int64_t columns,
                              Device device) {
  Slot& made = slots_[slot];
  const TensorView& have = made.rows;
  const bool same = (made.owned || rows == 0) && have.rank == 2 && have.dtype == dtype &&
                    have[0] == rows && have[1] == columns && have.device == device;
  if (same) return made.rows;
  check_idle(slot);
  TensorView wanted(nullptr, dtype, {rows, columns}, device);
  const TensorView& owned = made.owned;
  const bool fits = made.owned && owned.device == device && owned.bytes() >= wanted.bytes();
  if (!fits) made.owned = rows > 0 ? Tensor(dtype, {rows, columns}, device) : Tensor();
  if (rows > 0) wanted.data = made.owned.view().data;
  made.rows = wanted;
  return made.rows;
}

void Slots::lend(const SlotId& slot, const TensorView& rows) {
  check_idle(slot);
  slots_[slot] = {{}, rows};
}

void Slots::clear() {
  CHECK(pending_.empty(), "a message of slot", to_string(*pending_.begin()), "is pending");
  slots_.clear();
}

void Slots::clear_but(const SlotId& slot) {
  std::erase_if(slots_, [&](const auto& entry) {
    return entry.first != slot && !pending_.count(entry.first);
  });
}

void Slots::check_idle(const SlotId& slot) const {
  CHECK(!pending_.count(slot), "a message of slot", to_string(slot), "is pending");
}

const TensorView& Slots::operator[](const SlotId& slot) const {
  const auto found = slots_.find(slot);
  CHECK(found != slots_.end(), "slot", to_string(slot), "has no memory");
  return found->second.rows;
}

// One run of a plan, or of the windows of one.
struct Interpreter::Run {
  const Interpreter& of;
  Program& program;
  bool upper_bounds = false;
  std::map<SlotId, std::vector<Communicator::Pending>> sends{};
  struct Receive {
    SlotVersion version{};
    Communicator::Pending pending{};
  };
  std::map<SlotId, Receive> receives{};

  ~Run() { program.slots.pending_.clear(); }

  // Returns false where begin_turn stopped the run.
  bool walk(const Plan& plan) {
    auto turn = static_cast<int>(plan.turns.begin) - 1;
    int zone = -1;
    std::unique_ptr<ZoneScope> scope;  // neighbouring steps of a turn and a zone share one
    upper_bounds = plan.upper_bounds;
    for (const Step& step : plan.steps) {
      const bool same = turn == step.turn && program.zone(step) == zone;
      if (!same) scope.reset();
      while (turn < step.turn)
        if (!program.begin_turn(++turn)) return stop();
      zone = program.zone(step);
      if (!same && zone >= 0) scope = std::make_unique<ZoneScope>(Zone::kStep, zone);
      take(step);
      program.taken(step);
    }
    while (turn + 1 < plan.turns.end)
      if (!program.begin_turn(++turn)) return stop();
    return true;
  }
  void end() const {
    CHECK(sends.empty() && receives.empty(), "a message is pending after the plan");
  }

  // Every rank stops at this boundary, so all that was made before it will be taken. Rows that have
  // passed blocks of the turn that begins are never sent; their receives are taken back.
  bool stop() {
    for (auto& [slot, pending] : sends) wait(pending);
    for (auto& [slot, receive] : receives)
      if (receive.version.blocks == 0) of.communicator_->wait(receive.pending);
    receives.clear();
    if (of.communicator_) of.communicator_->close_messages(of.stream_);
    return false;
  }

  void wait(std::vector<Communicator::Pending>& pending) {
    for (Communicator::Pending& send : pending) of.communicator_->wait(send);
  }

  void take(const Step& step) {
    switch (step.kind) {
      case Step::Kind::kLoad:
        return program.load(step);
      case Step::Kind::kCompute:
        return program.compute(step);
      case Step::Kind::kUpdate:
        return program.update(step);
      case Step::Kind::kDecode:
        return program.decode(step);
      case Step::Kind::kEnter:
        return program.enter(step);
      case Step::Kind::kWord:
        return program.word(step);
      case Step::Kind::kSend:
        return send(step);
      case Step::Kind::kPost:
        return post(step);
      case Step::Kind::kAwait:
        return await(step);
      case Step::Kind::kReceive:
        post(step);
        return await(step);
      case Step::Kind::kWait:
        return wait(step);
    }
  }

  void wait(const Step& step) {
    const SlotId& slot = step.reads[0].slot;
    wait(sends[slot]);
    sends.erase(slot);
    program.slots.pending_.erase(slot);
  }

  Message message(const Step& step, const SlotVersion& version) {
    CHECK(of.communicator_, to_string(step), "has no communicator");
    program.prepare(step);
    const TensorView& rows = program.slots[version.slot];
    const auto bytes = static_cast<int64_t>(rows.bytes());
    CHECK(bytes == step.bytes || (upper_bounds && bytes < step.bytes), to_string(step), "has",
          bytes);
    Tag tag{.kind = step.payload, .pass = step.pass};
    tag.pass.step = version.turn;
    tag.pass = in_tag(tag.pass);
    program.slots.pending_.insert(version.slot);
    return {of.ranks_.empty() ? step.peer : of.ranks_[step.peer], tag, rows};
  }

  void send(const Step& step) {
    const Message message = this->message(step, step.reads[0]);
    sends[step.reads[0].slot].push_back(
        of.communicator_->post(of.stream_, {&message, 1}, {}, PostOrder::kPair));
  }

  void post(const Step& step) {
    const Message message = this->message(step, step.writes[0]);
    receives[step.writes[0].slot] = {
        step.writes[0], of.communicator_->post(of.stream_, {}, {&message, 1}, PostOrder::kPair)};
  }

  void await(const Step& step) {
    const SlotId& slot = step.writes[0].slot;
    of.communicator_->wait(receives[slot].pending);
    receives.erase(slot);
    program.slots.pending_.erase(slot);
    program.received(step);
  }
};

Interpreter::Interpreter(Stream& stream, Communicator* communicator, std::vector<int> ranks)
    : stream_(stream), communicator_(communicator), ranks_(std::move(ranks)) {}

void Interpreter::open(const Plan& own) {
  if (!communicator_) return;
  std::set<int> to, from;
  for (const Step& step : own.steps) {
    const int peer = step.peer < 0 || ranks_.empty() ? step.peer : ranks_[step.peer];
    if (step.kind == Step::Kind::kSend) to.insert(peer);
    if (step.kind == Step::Kind::kPost || step.kind == Step::Kind::kReceive) from.insert(peer);
  }
  communicator_->open_messages(std::vector<int>(to.begin(), to.end()),
                               std::vector<int>(from.begin(), from.end()));
}

bool Interpreter::run(std::span<const Plan> plans, int rank, const PlanRules& rules,
                      Program& program) {
  if (rank == 0) require_sound(plans, rules);
  open(plans[rank]);
  int given = 0;
  return run([&] { return given++ ? std::nullopt : std::optional(plans[rank]); }, program);
}

bool Interpreter::run(const std::function<std::optional<Plan>()>& next, Program& program) {
  Run run{*this, program};
  while (const std::optional<Plan> window = next())
    if (!run.walk(*window)) return false;
  run.end();
  return true;
}

}  // namespace weft
