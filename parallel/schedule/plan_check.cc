#include "parallel/schedule/plan_check.h"

#include <algorithm>
#include <map>
#include <utility>

namespace weft {

namespace {

using Kind = Step::Kind;

bool receives(const Step& step) { return step.kind == Kind::kReceive || step.kind == Kind::kPost; }
bool is_message(const Step& step) {
  return step.kind == Kind::kSend || step.kind == Kind::kAwait || receives(step);
}

std::string place(const Plan& plan, const Step& step) {
  return "rank " + std::to_string(plan.rank) + " turn " + std::to_string(step.turn) + " (" +
         to_string(step) + "): ";
}

// Finds faults within one rank: slots, versions and experts.
class RankCheck {
 public:
  RankCheck(const Plan& plan, const PlanRules& rules) : plan_(plan), rules_(rules) {
    for (const SlotVersion& version : plan.begins) slots_[version.slot].held = version;
  }

  std::optional<std::string> check() {
    for (const Step& step : plan_.steps) {
      take(step);
      if (!fault_.empty()) return place(plan_, step) + fault_;
    }
    for (const auto& [id, slot] : slots_) {
      if (slot.sending) fault("ends while a send may still read " + to_string(*slot.sending));
      if (slot.posted) fault("ends while a receive is posted into slot " + to_string(id));
    }
    for (const SlotVersion& version : plan_.ends) read(version);
    for (const auto& [id, slot] : slots_)
      if (!slot.read) fault("ends, and nothing has read " + to_string(*slot.held));
    if (fault_.empty()) return std::nullopt;
    return "rank " + std::to_string(plan_.rank) + " " + fault_;
  }

 private:
  struct Slot {
    std::optional<SlotVersion> held{}, sending{};  // what it holds, and what a send may still read
    bool read = true;                              // what it holds
    const Step* posted = nullptr;                  // a receive
  };

  void fault(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }
  void take(const Step& step) {
    if (step.turn < turn_) fault("goes back from turn " + std::to_string(turn_));
    turn_ = step.turn;
    if (is_message(step)) check_message(step);
    if (!fault_.empty()) return;
    if (step.kind == Kind::kWait) {
      wait(step);
    } else if (step.kind == Kind::kPost) {
      post(step);
    } else {
      if (step.kind == Kind::kAwait) await(step);
      for (const SlotVersion& version : step.reads) read(version);
      for (const SlotVersion& version : step.writes) write(version);
      if (step.kind == Kind::kSend) slots_[step.reads[0].slot].sending = step.reads[0];
    }
    if (step.kind == Kind::kLoad) load(step);
    if (step.kind == Kind::kCompute || step.kind == Kind::kUpdate || step.kind == Kind::kDecode ||
        step.kind == Kind::kEnter || step.kind == Kind::kWord)
      check_turns(step);
    if (step.kind == Kind::kCompute) check_blocks(step);
  }

  void check_message(const Step& step) {
    const bool one_slot = step.kind == Kind::kSend ? step.reads.size() == 1 && step.writes.empty()
                                                   : step.writes.size() == 1 && step.reads.empty();
    if (!one_slot || step.peer < 0 || step.peer >= plan_.ranks || step.peer == plan_.rank)
      fault("has no such peer or slot");
    else if (rules_.bytes && rules_.bytes(step) != step.bytes)
      fault("has not the bytes of its formula");
  }

  void wait(const Step& step) {
    if (step.reads.empty()) return fault("waits for no slot");
    const SlotVersion& version = step.reads[0];
    if (slots_[version.slot].sending != version)
      fault("waits, but no send reads " + to_string(version));
    slots_[version.slot].sending.reset();
  }

  void post(const Step& step) {
    Slot& slot = check_unused(step.writes[0].slot);
    slot.posted = &step;
    if (!slot.read) fault("overwrites " + to_string(*slot.held) + ", which nothing has read");
  }

  void await(const Step& step) {
    const Step* post = std::exchange(slots_[step.writes[0].slot].posted, nullptr);
    if (!post) return fault("awaits what was not posted");
    if (post->peer != step.peer || post->payload != step.payload || post->bytes != step.bytes ||
        post->pass != step.pass || !(post->tokens == step.tokens) || post->writes != step.writes)
      fault("was posted as " + to_string(*post));
  }

  void read(const SlotVersion& version) {
    Slot& slot = slots_[version.slot];
    if (slot.posted) fault("uses slot " + to_string(version.slot) + " while a receive is posted");
    if (!slot.held) return fault("reads slot " + to_string(version.slot) + " unwritten");
    if (slot.held != version)
      fault("reads " + to_string(version) + ", but it holds " + to_string(*slot.held));
    slot.read = true;
  }

  Slot& check_unused(const SlotId& id) {
    Slot& slot = slots_[id];
    if (slot.sending) fault("writes slot " + to_string(id) + " while a send may still read it");
    if (slot.posted) fault("uses slot " + to_string(id) + " while a receive is posted");
    return slot;
  }

  void write(const SlotVersion& version) {
    Slot& slot = check_unused(version.slot);
    if (slot.held && *slot.held >= version)
      fault("writes " + to_string(version) + " over " + to_string(*slot.held) + ", not older");
    if (!slot.read) fault("overwrites " + to_string(*slot.held) + ", which nothing has read");
    slot.held = version;
    slot.read = false;
  }

  bool loaded(int model) const { return std::ranges::count(models_, model) > 0; }
  void load(const Step& step) {
    if (loaded(step.pass.model)) fault("loads the expert that is loaded");
    models_.push_back(step.pass.model);
    if (std::ssize(models_) > rules_.experts) models_.erase(models_.begin());
  }

  void check_turns(const Step& step) {
    if (step.stale < 0 || step.stale > rules_.stale)
      fault("may be stale by " + std::to_string(rules_.stale) + " turns at most");
    const int turn = step.turn + step.ahead;
    for (const SlotVersion& version : step.reads) {
      if (version.turn > turn || version.turn < turn - step.stale)
        fault("reads " + to_string(version) + ", which is too old or too new");
      if (std::ranges::count(step.reads, version.slot, &SlotVersion::slot) > 1)
        fault("reads slot " + to_string(version.slot) + " twice");
    }
    const int made = turn + (step.kind == Kind::kUpdate);
    // Rows that enter and permits may be for a later turn.
    const bool later = step.kind == Kind::kEnter || step.kind == Kind::kWord;
    for (const SlotVersion& version : step.writes)
      if (version.turn < made || (version.turn > made && !later))
        fault("writes " + to_string(version) + ", a wrong turn");
  }

  void check_blocks(const Step& step) {
    const BlockRange& blocks = step.blocks;
    if (!loaded(step.pass.model)) fault("computes before its expert is loaded");
    if (blocks.begin < 0 || blocks.begin >= blocks.end || blocks.end > blocks.total)
      fault("has an illegal block range");
    if (std::ranges::find(step.reads, blocks.begin, &SlotVersion::blocks) == step.reads.end())
      fault("reads no rows that have passed the blocks before");
    for (const SlotVersion& version : step.writes)
      if (version.blocks != blocks.end) fault("writes rows of other blocks than it computes");
  }

  const Plan& plan_;
  const PlanRules& rules_;
  std::map<SlotId, Slot> slots_;
  std::vector<int> models_;  // the experts that are loaded
  int turn_ = 0;
  std::string fault_;
};

// Runs the plans with sends that end only when their receives are posted, and compares every
// receive with the send that it meets. It takes every rank's next steps in turn until all are done
// or none can go on.
class Rendezvous {
 public:
  explicit Rendezvous(std::span<const Plan> plans) : plans_(plans), ranks_(plans.size()) {}

  std::optional<std::string> check() {
    do {
      moved_ = false;
      for (size_t r = 0; r < plans_.size(); ++r)
        for (; ranks_[r].next < plans_[r].steps.size(); ++ranks_[r].next, moved_ = true)
          if (!passes(plans_[r], ranks_[r], plans_[r].steps[ranks_[r].next])) break;
    } while (moved_);
    std::string stuck;
    for (size_t r = 0; r < plans_.size(); ++r)
      if (ranks_[r].next < plans_[r].steps.size())
        stuck += (stuck.empty() ? "deadlock: rank " : "; rank ") + std::to_string(plans_[r].rank) +
                 " stands at " + to_string(plans_[r].steps[ranks_[r].next]);
    for (const auto& [ends, link] : links_)
      if (mismatch_.empty() && stuck.empty() && link.posted < link.sends.size())
        stuck = "rank " + std::to_string(ends.first) + " sends to rank " +
                std::to_string(ends.second) +
                " what is never received: " + to_string(*link.sends[link.posted]);
    if (mismatch_.empty() && stuck.empty()) return std::nullopt;
    return mismatch_.empty() ? stuck : mismatch_;
  }

 private:
  // The messages from one rank to another: the k-th send meets the k-th receive.
  struct Link {
    std::vector<const Step*> sends;
    size_t posted = 0;  // receives
  };
  struct Message {
    Link* link = nullptr;
    size_t number = 0;
  };
  struct Rank {
    size_t next = 0;
    std::map<SlotId, std::vector<Message>> sends;  // those not waited for
    std::map<SlotId, Message> posts;
  };

  bool passes(const Plan& plan, Rank& rank, const Step& step) {
    if (step.kind == Kind::kSend) {
      Link& link = links_[{plan.rank, step.peer}];
      rank.sends[step.reads[0].slot].push_back({&link, link.sends.size()});
      link.sends.push_back(&step);
    }
    if (step.kind == Kind::kWait) {
      const auto& sends = rank.sends[step.reads[0].slot];
      if (!std::ranges::all_of(sends, [](const Message& m) { return m.link->posted > m.number; }))
        return false;
      rank.sends.erase(step.reads[0].slot);
    }
    if (step.kind != Kind::kAwait && !receives(step)) return true;
    const SlotId& slot = step.writes[0].slot;
    if (!rank.posts.count(slot)) {  // a receive that is met again has posted before
      Link& link = links_[{step.peer, plan.rank}];
      rank.posts[slot] = {&link, link.posted++};
      moved_ = true;
    }
    if (step.kind == Kind::kPost) return true;
    const Message& message = rank.posts[slot];
    if (message.link->sends.size() <= message.number) return false;
    meet(plan, *message.link->sends[message.number], step);
    rank.posts.erase(slot);
    return true;
  }

  void meet(const Plan& plan, const Step& send, const Step& receive) {
    const SlotVersion &from = send.reads[0], &to = receive.writes[0];
    if (mismatch_.empty() &&
        (send.payload != receive.payload || send.bytes != receive.bytes ||
         send.pass != receive.pass || !(send.tokens == receive.tokens) || from.turn != to.turn ||
         from.blocks != to.blocks || from.order != to.order))
      mismatch_ = place(plan, receive) + "the send it meets is " + to_string(send);
  }

  std::span<const Plan> plans_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Link> links_;  // (from, to)
  bool moved_ = false;
  std::string mismatch_;
};

}  // namespace

std::optional<std::string> check_plans(std::span<const Plan> plans, const PlanRules& rules) {
  for (const Plan& plan : plans)
    if (auto fault = RankCheck(plan, rules).check()) return fault;
  return Rendezvous(plans).check();
}

void require_sound(std::span<const Plan> plans, const PlanRules& rules) {
  const std::optional<std::string> fault = check_plans(plans, rules);
  CHECK(!fault, *fault);
}

std::string proof_of(std::span<const Plan> plans, const PlanRules& rules) {
  size_t steps = 0, messages = 0;
  for (const Plan& plan : plans) {
    steps += plan.steps.size();
    messages += std::ranges::count(plan.steps, Kind::kSend, &Step::kind);
  }
  const auto counted = [](size_t count, const char* what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  return counted(plans.size(), "rank") + ", " + counted(steps, "step") + ", " +
         counted(messages, "message") +
         ": no deadlock under rendezvous sends; every slot is written before it is read, in the "
         "version declared, " +
         (rules.stale ? "stale by at most " + counted(rules.stale, "turn") : "none of them stale") +
         "; sends and receives match" + (rules.bytes ? "; bytes follow the formula" : "");
}

}  // namespace weft
