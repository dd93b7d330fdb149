#include "parallel/schedule/plan.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "kernels/check.h"

namespace weft {

namespace {

const char* name(Step::Kind kind) {
  switch (kind) {
    case Step::Kind::kLoad:
      return "load";
    case Step::Kind::kCompute:
      return "compute";
    case Step::Kind::kSend:
      return "send";
    case Step::Kind::kReceive:
      return "receive";
    case Step::Kind::kWait:
      return "wait";
    case Step::Kind::kUpdate:
      return "update";
    case Step::Kind::kDecode:
      return "decode";
  }
  return "?";
}

std::string list(const std::vector<int>& slots) {
  std::string text = "[";
  for (size_t i = 0; i < slots.size(); ++i) text += (i ? " " : "") + std::to_string(slots[i]);
  return text + "]";
}

// Finds faults within one rank: slots and experts.
std::optional<std::string> check_rank(const Plan& plan) {
  std::set<int> written{0};  // the latent slot holds noise before the first step
  std::set<int> loaded, sending;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const auto fault = [&](const std::string& what) {
      return "rank " + std::to_string(plan.rank) + " step " + std::to_string(i) + " (" +
             to_string(step) + "): " + what;
    };
    for (int slot : step.reads)
      if (!written.count(slot)) return fault("reads slot " + std::to_string(slot) + " unwritten");
    for (int slot : step.writes)
      if (sending.count(slot))
        return fault("writes slot " + std::to_string(slot) + " while a send may still read it");
    written.insert(step.writes.begin(), step.writes.end());
    switch (step.kind) {
      case Step::Kind::kLoad:
        loaded.insert(step.pass.model);
        break;
      case Step::Kind::kSend:
        sending.insert(step.reads.begin(), step.reads.end());
        break;
      case Step::Kind::kWait:
        for (int slot : step.reads) sending.erase(slot);
        break;
      case Step::Kind::kCompute:
        if (!loaded.count(step.pass.model)) return fault("computes before its expert is loaded");
        if (step.blocks.begin < 0 || step.blocks.begin > step.blocks.end ||
            step.blocks.end > step.blocks.total)
          return fault("has an illegal block range");
        break;
      default:
        break;
    }
  }
  if (!sending.empty())
    return "rank " + std::to_string(plan.rank) + " ends while a send may still read slot " +
           std::to_string(*sending.begin());
  return std::nullopt;
}

// Runs the plans with sends that end only when they are received. It takes every rank's next step
// in turn until all are done or none can go on.
std::optional<std::string> check_rendezvous(std::span<const Plan> plans) {
  struct Rank {
    size_t next = 0;
    std::map<int, int> reading;  // slot -> posted sends that still read it
  };
  struct Posted {
    size_t from;
    std::vector<int> slots;
  };
  std::vector<Rank> ranks(plans.size());
  std::map<std::pair<int, int>, std::deque<Posted>> posted;  // (from, to) in order
  const auto busy = [](const Rank& rank, const std::vector<int>& slots) {
    return std::any_of(slots.begin(), slots.end(), [&](int slot) {
      const auto found = rank.reading.find(slot);
      return found != rank.reading.end() && found->second > 0;
    });
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < plans.size(); ++r) {
      for (; ranks[r].next < plans[r].steps.size(); ++ranks[r].next, moved = true) {
        const Step& step = plans[r].steps[ranks[r].next];
        if (step.kind == Step::Kind::kReceive) {
          auto& queue = posted[{step.peer, plans[r].rank}];
          if (queue.empty()) break;
          for (int slot : queue.front().slots) --ranks[queue.front().from].reading[slot];
          queue.pop_front();
        }
        if (step.kind == Step::Kind::kWait && busy(ranks[r], step.reads)) break;
        if (step.kind == Step::Kind::kSend) {
          posted[{plans[r].rank, step.peer}].push_back({r, step.reads});
          for (int slot : step.reads) ++ranks[r].reading[slot];
        }
      }
    }
  }
  std::string stuck;
  for (size_t r = 0; r < plans.size(); ++r)
    if (ranks[r].next < plans[r].steps.size())
      stuck += (stuck.empty() ? "deadlock: rank " : "; rank ") + std::to_string(plans[r].rank) +
               " stands at " + to_string(plans[r].steps[ranks[r].next]);
  if (!stuck.empty()) return stuck;
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_plans(std::span<const Plan> plans) {
  struct Message {
    Payload payload;
    int64_t bytes;
    Pass pass;
  };
  std::map<std::pair<int, int>, std::deque<Message>> sent;  // (from, to) in order
  for (const Plan& plan : plans) {
    if (auto fault = check_rank(plan)) return fault;
    for (const Step& step : plan.steps) {
      if (step.kind != Step::Kind::kSend && step.kind != Step::Kind::kReceive) continue;
      if (step.peer < 0 || step.peer >= plan.ranks || step.peer == plan.rank)
        return "rank " + std::to_string(plan.rank) + " (" + to_string(step) + "): no such peer";
      if (step.kind == Step::Kind::kSend)
        sent[{plan.rank, step.peer}].push_back({step.payload, step.bytes, step.pass});
    }
  }
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps) {
      if (step.kind != Step::Kind::kReceive) continue;
      const std::string who = "rank " + std::to_string(plan.rank) + " (" + to_string(step) + "): ";
      auto& queue = sent[{step.peer, plan.rank}];
      if (queue.empty()) return who + "nothing is sent";
      const Message& message = queue.front();
      if (message.payload != step.payload || message.bytes != step.bytes ||
          message.pass != step.pass)
        return who + "the send it meets is of " + std::string(to_string(message.payload)) + ", " +
               std::to_string(message.bytes) + " bytes, " + to_string(message.pass);
      queue.pop_front();
    }
  for (const auto& [link, queue] : sent)
    if (!queue.empty())
      return "rank " + std::to_string(link.first) + " sends to rank " +
             std::to_string(link.second) + " what is never received";
  return check_rendezvous(plans);
}

std::string to_string(const Step& step) {
  std::string text = std::string(name(step.kind)) + " " + to_string(step.pass);
  if (step.kind == Step::Kind::kCompute)
    text += " blocks [" + std::to_string(step.blocks.begin) + ", " +
            std::to_string(step.blocks.end) + ") of " + std::to_string(step.blocks.total);
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
  for (const Step& step : plan.steps) text += "  " + to_string(step) + "\n";
  return text;
}

}  // namespace weft
