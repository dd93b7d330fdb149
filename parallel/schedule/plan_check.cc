#include "parallel/schedule/plan_check.h"

#include <algorithm>
#include <deque>
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
    for (const SlotVersion& version : plan.begins) held_[version.slot] = {version, true, true};
  }

  std::optional<std::string> check() {
    for (const Step& step : plan_.steps) {
      take(step);
      if (!fault_.empty()) return place(plan_, step) + fault_;
    }
    for (const auto& [slot, version] : sending_)
      fault("ends while a send may still read " + to_string(version));
    for (const auto& [slot, step] : posted_)
      fault("ends while a receive is posted into slot " + std::to_string(slot));
    for (const SlotVersion& version : plan_.ends) read(version);
    for (const auto& [slot, held] : held_)
      if (!held.read) fault("ends, and nothing has read " + to_string(held.version));
    if (fault_.empty()) return std::nullopt;
    return "rank " + std::to_string(plan_.rank) + " " + fault_;
  }

 private:
  struct Held {
    SlotVersion version{};
    bool read = false;
    bool valid = false;  // false from the post of a receive into the slot on
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
      if (step.kind == Kind::kSend) sending_[step.reads[0].slot] = step.reads[0];
    }
    if (step.kind == Kind::kLoad) load(step);
    if (step.kind == Kind::kCompute || step.kind == Kind::kUpdate || step.kind == Kind::kDecode)
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
    const SlotVersion version = step.reads.empty() ? SlotVersion{-1} : step.reads[0];
    const auto sent = sending_.find(version.slot);
    if (sent == sending_.end() || sent->second != version)
      fault("waits, but no send reads " + to_string(version));
    else
      sending_.erase(sent);
  }

  void post(const Step& step) {
    const int slot = step.writes[0].slot;
    check_unused(slot);
    posted_[slot] = &step;
    const auto held = held_.find(slot);
    if (held == held_.end()) return;
    if (!held->second.read)
      fault("overwrites " + to_string(held->second.version) + ", which nothing has read");
    held->second.valid = false;
  }

  void await(const Step& step) {
    const auto posted = posted_.find(step.writes[0].slot);
    if (posted == posted_.end()) return fault("awaits what was not posted");
    const Step& post = *posted->second;
    if (post.peer != step.peer || post.payload != step.payload || post.bytes != step.bytes ||
        post.pass != step.pass || !(post.tokens == step.tokens) || post.writes != step.writes)
      fault("was posted as " + to_string(post));
    posted_.erase(posted);
  }

  void read(const SlotVersion& version) {
    const auto held = held_.find(version.slot);
    if (posted_.count(version.slot))
      fault("uses slot " + std::to_string(version.slot) + " while a receive is posted");
    if (held == held_.end() || !held->second.valid)
      return fault("reads slot " + std::to_string(version.slot) + " unwritten");
    if (held->second.version != version)
      fault("reads " + to_string(version) + ", but it holds " + to_string(held->second.version));
    held->second.read = true;
  }

  void check_unused(int slot) {
    if (sending_.count(slot))
      fault("writes slot " + std::to_string(slot) + " while a send may still read it");
    if (posted_.count(slot))
      fault("uses slot " + std::to_string(slot) + " while a receive is posted");
  }

  void write(const SlotVersion& version) {
    check_unused(version.slot);
    const auto held = held_.find(version.slot);
    if (held != held_.end()) {
      const SlotVersion& before = held->second.version;
      if (before >= version)
        fault("writes " + to_string(version) + " over " + to_string(before) + ", not older");
      if (!held->second.read) fault("overwrites " + to_string(before) + ", which nothing has read");
    }
    held_[version.slot] = {version, false, true};
  }

  void load(const Step& step) {
    if (model_ == step.pass.model) fault("loads the expert that is loaded");
    model_ = step.pass.model;
  }

  void check_turns(const Step& step) {
    if (step.stale < 0 || step.stale > rules_.stale)
      fault("may be stale by " + std::to_string(rules_.stale) + " turns at most");
    for (const SlotVersion& version : step.reads) {
      if (version.turn > step.turn || version.turn < step.turn - step.stale)
        fault("reads " + to_string(version) + ", which is too old or too new");
      if (std::ranges::count(step.reads, version.slot, &SlotVersion::slot) > 1)
        fault("reads slot " + std::to_string(version.slot) + " twice");
    }
    const int made = step.kind == Kind::kUpdate ? step.turn + 1 : step.turn;
    for (const SlotVersion& version : step.writes)
      if (version.turn != made) fault("writes " + to_string(version) + ", a wrong turn");
  }

  void check_blocks(const Step& step) {
    const BlockRange& blocks = step.blocks;
    if (model_ != step.pass.model) fault("computes before its expert is loaded");
    if (blocks.begin < 0 || blocks.begin >= blocks.end || blocks.end > blocks.total)
      fault("has an illegal block range");
    if (std::ranges::find(step.reads, blocks.begin, &SlotVersion::blocks) == step.reads.end())
      fault("reads no rows that have passed the blocks before");
    for (const SlotVersion& version : step.writes)
      if (version.blocks != blocks.end) fault("writes rows of other blocks than it computes");
  }

  const Plan& plan_;
  const PlanRules& rules_;
  std::map<int, Held> held_;
  std::map<int, SlotVersion> sending_;
  std::map<int, const Step*> posted_;
  int model_ = -1, turn_ = 0;
  std::string fault_;
};

// Compares every receive with the send that it meets. Messages between two ranks keep their order.
std::optional<std::string> check_messages(std::span<const Plan> plans) {
  std::map<std::pair<int, int>, std::deque<const Step*>> sent;  // (from, to)
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps)
      if (step.kind == Kind::kSend) sent[{plan.rank, step.peer}].push_back(&step);
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps) {
      if (!receives(step)) continue;
      auto& queue = sent[{step.peer, plan.rank}];
      if (queue.empty()) return place(plan, step) + "nothing is sent";
      const Step& send = *queue.front();
      const SlotVersion &from = send.reads[0], &to = step.writes[0];
      if (send.payload != step.payload || send.bytes != step.bytes || send.pass != step.pass ||
          !(send.tokens == step.tokens) || from.turn != to.turn || from.blocks != to.blocks)
        return place(plan, step) + "the send it meets is " + to_string(send);
      queue.pop_front();
    }
  for (const auto& [link, queue] : sent)
    if (!queue.empty())
      return "rank " + std::to_string(link.first) + " sends to rank " +
             std::to_string(link.second) + " what is never received: " + to_string(*queue.front());
  return std::nullopt;
}

// Runs the plans with sends that end only when their receives are posted. It takes every rank's
// next steps in turn until all are done or none can go on.
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
    if (stuck.empty()) return std::nullopt;
    return stuck;
  }

 private:
  // The messages from one rank to another: the k-th send meets the k-th receive.
  struct Link {
    int sent = 0, posted = 0;
  };
  struct Message {
    Link* link = nullptr;
    int number = 0;
  };
  struct Rank {
    size_t next = 0;
    std::map<int, std::vector<Message>> sends;  // by slot, those not waited for
    std::map<int, Message> posts;               // by slot
  };

  bool passes(const Plan& plan, Rank& rank, const Step& step) {
    if (step.kind == Kind::kSend) {
      Link& link = links_[{plan.rank, step.peer}];
      rank.sends[step.reads[0].slot].push_back({&link, link.sent++});
    }
    if (step.kind == Kind::kWait) {
      const auto& sends = rank.sends[step.reads[0].slot];
      if (!std::ranges::all_of(sends, [](const Message& m) { return m.link->posted > m.number; }))
        return false;
      rank.sends.erase(step.reads[0].slot);
    }
    if (step.kind != Kind::kAwait && !receives(step)) return true;
    const int slot = step.writes[0].slot;
    if (!rank.posts.count(slot)) {  // a receive that is met again has posted before
      Link& link = links_[{step.peer, plan.rank}];
      rank.posts[slot] = {&link, link.posted++};
      moved_ = true;
    }
    if (step.kind == Kind::kPost) return true;
    const Message& message = rank.posts[slot];
    if (message.link->sent <= message.number) return false;
    rank.posts.erase(slot);
    return true;
  }

  std::span<const Plan> plans_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Link> links_;
  bool moved_ = false;
};

}  // namespace

std::optional<std::string> check_plans(std::span<const Plan> plans, const PlanRules& rules) {
  for (const Plan& plan : plans)
    if (auto fault = RankCheck(plan, rules).check()) return fault;
  if (auto fault = check_messages(plans)) return fault;
  return Rendezvous(plans).check();
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
