#include "parallel/schedule/plan_timing.h"

#include <algorithm>
#include <map>
#include <utility>

namespace weft {
namespace {

struct Wire {                 // from one rank to another
  std::vector<double> due_s;  // of what was sent
  size_t posted = 0;
};

struct Rank {
  Rank(const DeviceModel& device, const Link& link) : messages(device, link) {}
  double now_s = 0;
  MessageClock messages;
  std::map<SlotId, size_t> posts{};     // the number of a receive on its wire
  std::map<SlotId, double> copied_s{};  // when what was sent from the slot has been copied
  std::vector<StepTime> done{};
  size_t forwards = 0;
  bool waits = false;  // for the others of its group
};

struct Meeting {  // of a group, before a forward
  size_t ranks = 0;
  double latest_s = 0;
};

class Timing {
 public:
  Timing(std::span<const Plan> plans, const DeviceModel& device, const Link& link,
         const std::vector<int>& groups)
      : plans_(plans),
        groups_(groups),
        message_s_(device.message_s),
        ranks_(plans.size(), Rank(device, link)),
        wires_(plans.size() * plans.size()) {}

  std::vector<std::vector<StepTime>> run(
      const std::function<double(const Step& step, int rank)>& seconds) {
    for (bool moved = true; std::exchange(moved, false);)
      for (const Plan& plan : plans_) {
        Rank& rank = ranks_[plan.rank];
        while (rank.done.size() < plan.steps.size()) {
          const Step& step = plan.steps[rank.done.size()];
          double begin_s = rank.now_s;
          if (!passes(rank, plan.rank, step)) break;
          if (step.kind == Step::Kind::kCompute) begin_s = rank.now_s;
          if (step.peer < 0 && step.kind != Step::Kind::kWait)
            rank.now_s += seconds(step, plan.rank);
          rank.done.push_back({begin_s, rank.now_s});
          moved = true;
        }
      }
    std::vector<std::vector<StepTime>> times;
    for (Rank& rank : ranks_) times.push_back(std::move(rank.done));
    return times;
  }

 private:
  Wire& wire(int from, int to) { return wires_[from * plans_.size() + to]; }

  bool meets(Rank& rank, int index) {
    Meeting& meeting = meetings_[{groups_[index], rank.forwards}];
    meeting.latest_s = std::max(meeting.latest_s, rank.now_s);
    meeting.ranks += !std::exchange(rank.waits, true);
    if (std::ranges::count(groups_, groups_[index]) != static_cast<int64_t>(meeting.ranks))
      return false;
    rank.now_s = meeting.latest_s;
    rank.waits = false;
    ++rank.forwards;
    return true;
  }

  // Returns false where the step waits for what has not been sent yet.
  bool passes(Rank& rank, int index, const Step& step) {
    if (step.kind == Step::Kind::kCompute && !step.reuses && !groups_.empty())
      return meets(rank, index);
    if (step.kind == Step::Kind::kSend) {
      rank.now_s += message_s_;
      const auto [copied_s, due_s] = rank.messages.send(rank.now_s, step.bytes);
      double& until_s = rank.copied_s[step.reads[0].slot];
      until_s = std::max(until_s, copied_s);
      wire(index, step.peer).due_s.push_back(due_s);
    }
    if (step.kind == Step::Kind::kWait)
      rank.now_s = std::max(rank.now_s, rank.copied_s[step.reads[0].slot]);
    const bool posts = step.kind == Step::Kind::kPost || step.kind == Step::Kind::kReceive;
    if (posts && !rank.posts.count(step.writes[0].slot))
      rank.posts[step.writes[0].slot] = wire(step.peer, index).posted++;
    if (step.kind == Step::Kind::kAwait || step.kind == Step::Kind::kReceive) {
      const Wire& from = wire(step.peer, index);
      const size_t number = rank.posts.at(step.writes[0].slot);
      if (from.due_s.size() <= number) return false;
      const double there_s = rank.messages.receive(from.due_s[number], step.bytes);
      rank.now_s = std::max(rank.now_s, there_s) + message_s_;
      rank.posts.erase(step.writes[0].slot);
    }
    return true;
  }

  std::span<const Plan> plans_;
  const std::vector<int>& groups_;
  const double message_s_;
  std::vector<Rank> ranks_;
  std::vector<Wire> wires_;
  std::map<std::pair<int, size_t>, Meeting> meetings_;  // by group and forward
};

}  // namespace

std::vector<std::vector<StepTime>> time_plans(
    std::span<const Plan> plans, const DeviceModel& device, const Link& link,
    const std::function<double(const Step& step, int rank)>& seconds,
    const std::vector<int>& groups) {
  return Timing(plans, device, link, groups).run(seconds);
}

}  // namespace weft
