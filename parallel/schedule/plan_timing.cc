#include "parallel/schedule/plan_timing.h"

#include <algorithm>
#include <map>
#include <utility>


namespace weft {
namespace {

struct Wire {                // from one rank to another
  std::vector<double> due_s;  // of what was sent
  size_t posted = 0;
};

struct Rank {
  Rank(const DeviceModel& device, const Link& link) : messages(device, link) {}
  double now_s = 0;
  MessageClock messages;
  std::map<int, size_t> posts{};    // by slot: the number of a receive among those of its wire
  std::map<int, double> copied_s{};  // by slot: when what was sent from it has been copied
  std::vector<StepTime> done{};
};

class Timing {
 public:
  Timing(std::span<const Plan> plans, const DeviceModel& device, const Link& link)
      : plans_(plans),
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
          const double begin_s = rank.now_s;
          if (!passes(rank, plan.rank, step)) break;
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

  // Returns false where the step waits for what has not been sent yet.
  bool passes(Rank& rank, int index, const Step& step) {
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
  const double message_s_;
  std::vector<Rank> ranks_;
  std::vector<Wire> wires_;
};

}  // namespace

std::vector<std::vector<StepTime>> time_plans(
    std::span<const Plan> plans, const DeviceModel& device, const Link& link,
    const std::function<double(const Step& step, int rank)>& seconds) {
  return Timing(plans, device, link).run(seconds);
}

}  // namespace weft
