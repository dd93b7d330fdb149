#include "parallel/schedule/plan_writer.h"

#include <algorithm>

namespace weft {

PlanWriter::PlanWriter(int rank, int ranks) {
  plan_.rank = rank;
  plan_.ranks = ranks;
}

// A turn ends with no sends pending but its own. So what is pending before a window follows from
// the turn before it.
Plan PlanWriter::write(const Range& turns, const Range& all) {
  for (int64_t turn = std::max(turns.begin - 1, all.begin); turn < turns.end; ++turn) {
    if (turn == turns.begin) plan_.steps.clear();
    turn_ = static_cast<int>(turn);
    write_turn(turn_);
    wait_for_older_sends({.step = turn_});
  }
  plan_.turns = turns;
  if (turns.begin == all.begin) plan_.begins = begins();
  if (turns.end == all.end) plan_.ends = ends();
  return std::move(plan_);
}

void PlanWriter::add(Step step) {
  step.turn = turn_;
  plan_.steps.push_back(std::move(step));
}

void PlanWriter::send(Step message, const SlotVersion& from) {
  message.kind = Step::Kind::kSend;
  message.reads = {from};
  add(std::move(message));
  if (std::ranges::find(sending_, std::pair(from, turn_)) == sending_.end())
    sending_.emplace_back(from, turn_);
}

void PlanWriter::receive(Step::Kind kind, Step message, const SlotVersion& to) {
  message.kind = kind;
  message.writes = {to};
  add(std::move(message));
}

void PlanWriter::wait_for_send(const Pass& pass, const SlotId& slot) {
  const auto sent =
      std::ranges::find_if(sending_, [&](const auto& send) { return send.first.slot == slot; });
  if (sent == sending_.end()) return;
  add({.kind = Step::Kind::kWait, .pass = pass, .reads = {sent->first}});
  sending_.erase(sent);
}

void PlanWriter::wait_for_older_sends(const Pass& pass) {
  for (const auto& [version, since] : std::vector(sending_))
    if (since < turn_) wait_for_send(pass, version.slot);
}

void PlanWriter::wait_for_sends(const Pass& pass) {
  while (!sending_.empty()) wait_for_send(pass, sending_.front().first.slot);
}

}  // namespace weft
