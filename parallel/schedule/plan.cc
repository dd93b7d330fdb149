#include "parallel/schedule/plan.h"

#include <map>

#include "kernels/check.h"

namespace weft {

namespace {

// In the order of Step::Kind.
constexpr const char* kKinds[] = {"load", "compute", "send",   "post",  "await", "receive",
                                  "wait", "update",  "decode", "enter", "word"};

// In the order of SlotKind.
constexpr const char* kSlots[] = {"latent",      "patch",   "velocity", "hidden", "buffer",
                                  "first-block", "keys",    "added",    "whole",  "sent-frame",
                                  "frame-part",  "frames",  "segment",  "sink",   "word",
                                  "permit",      "granted", "prompt",   "results"};
static_assert(std::size(kSlots) == static_cast<size_t>(SlotKind::kCount));

std::string list(const std::vector<SlotVersion>& versions) {
  std::string text = "[";
  for (const SlotVersion& version : versions)
    text += (text.size() > 1 ? " " : "") + to_string(version);
  return text + "]";
}

}  // namespace

void append(Plan& plan, const Plan& next) {
  CHECK(plan.rank == next.rank && plan.ranks == next.ranks, "ranks", plan.rank, next.rank);
  plan.steps.insert(plan.steps.end(), next.steps.begin(), next.steps.end());
  plan.ends = next.ends;
  plan.turns.end = next.turns.end;
}

bool TurnSummary::alike(const TurnSummary& other) const {
  return loads == other.loads && forwards == other.forwards && updates == other.updates &&
         decodes == other.decodes && messages == other.messages && bytes == other.bytes;
}

std::vector<TurnSummary> summarize_turns(std::span<const Plan> plans) {
  std::map<int, TurnSummary> turns;
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps) {
      TurnSummary& turn = turns[step.turn];
      turn.turns = {step.turn, step.turn + 1};
      turn.loads += step.kind == Step::Kind::kLoad;
      turn.forwards += step.kind == Step::Kind::kCompute;
      turn.updates += step.kind == Step::Kind::kUpdate;
      turn.decodes += step.kind == Step::Kind::kDecode;
      turn.messages += step.kind == Step::Kind::kSend;
      if (step.kind == Step::Kind::kSend) turn.bytes += step.bytes;
    }
  std::vector<TurnSummary> summary;
  for (const auto& [index, turn] : turns) {
    if (!summary.empty() && summary.back().alike(turn) && summary.back().turns.end == index)
      summary.back().turns.end = index + 1;
    else
      summary.push_back(turn);
  }
  return summary;
}

std::string to_string(const SlotId& slot) {
  return kSlots[static_cast<int>(slot.kind)] +
         (slot.segment < 0 ? "" : std::to_string(slot.segment)) +
         (slot.part < 0 ? "" : "." + std::to_string(slot.part)) +
         (slot.branch < 0 ? "" : "." + std::to_string(slot.branch));
}

std::string to_string(const SlotVersion& version) {
  return to_string(version.slot) + "@" + std::to_string(version.turn) +
         (version.order ? "." + std::to_string(version.order) : "") +
         (version.blocks ? "/" + std::to_string(version.blocks) : "");
}

std::string to_string(const Step& step) {
  std::string text = std::string(kKinds[static_cast<int>(step.kind)]) + " " + to_string(step.pass);
  if (step.kind == Step::Kind::kCompute)
    text += " blocks [" + std::to_string(step.blocks.begin) + ", " +
            std::to_string(step.blocks.end) + ") of " + std::to_string(step.blocks.total);
  if (step.tokens.size() > 0) text += " tokens " + to_string(step.tokens);
  if (step.reuses) text += " from the cache";
  if (step.ahead) text += " one turn ahead";
  if (step.stale > 0) text += " stale " + std::to_string(step.stale);
  if (step.peer >= 0)
    text += " peer " + std::to_string(step.peer) + " " + std::string(to_string(step.payload)) +
            " " + std::to_string(step.bytes) + " bytes";
  if (!step.reads.empty()) text += " reads " + list(step.reads);
  if (!step.writes.empty()) text += " writes " + list(step.writes);
  return text;
}

std::string to_string(const Plan& plan) {
  std::string text = "rank " + std::to_string(plan.rank) + " of " + std::to_string(plan.ranks) +
                     ", " + std::to_string(plan.steps.size()) + " steps\n";
  int turn = -1;
  for (const Step& step : plan.steps) {
    if (step.turn != turn) text += " turn " + std::to_string(turn = step.turn) + "\n";
    text += "  " + to_string(step) + "\n";
  }
  return text;
}

}  // namespace weft
