#include "apps/plan_queue.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "apps/command_line/byte_size.h"
#include "parallel/schedule/timeline_svg.h"

namespace weft {
namespace {

constexpr int64_t kMostForwards = 1'000'000;  // that JSON lists

// The forwards of one stage and branch, which all ranks of its group compute together.
struct Column {
  int rank = 0;  // the first of them
  std::string name;
  std::map<int64_t, Pass> forwards;  // by slot
};

struct SlotTable {
  std::vector<Column> columns;
  int64_t slots = 0;
  int branches = 1;  // that a stage computes one after the other

  int64_t idle() const { return slots - static_cast<int64_t>(columns.front().forwards.size()); }
  bool full(int64_t slot) const {
    return std::ranges::all_of(columns,
                               [&](const Column& c) { return c.forwards.count(slot) > 0; });
  }
};

SlotTable table_of(const QueuePlanConfig& config, std::span<const Plan> plans) {
  const Mesh mesh(config.layout);
  const auto slots = slots_of(plans);
  SlotTable table;
  for (const Plan& plan : plans) {
    if (mesh.sequence_index(plan.rank) > 0 || mesh.at(Axis::kTensor, plan.rank) > 0) continue;
    Column column{plan.rank, "stage " + std::to_string(mesh.at(Axis::kLayers, plan.rank)), {}};
    if (config.layout[Axis::kCfg] > 1) column.name += mesh.at(Axis::kCfg, plan.rank) ? "-" : "+";
    for (size_t i = 0; i < plan.steps.size(); ++i)
      if (plan.steps[i].kind == Step::Kind::kCompute && !plan.steps[i].reuses) {
        column.forwards[slots[plan.rank][i]] = plan.steps[i].pass;
        table.slots = std::max(table.slots, slots[plan.rank][i] + 1);
      }
    table.columns.push_back(std::move(column));
  }
  if (config.layout[Axis::kCfg] == 1)
    for (const auto& step : config.steps) table.branches = std::max(table.branches, step.branches);
  return table;
}

std::string name_of(const Pass& pass, bool both_branches) {
  return std::to_string(pass.segment) + "." + std::to_string(pass.step) +
         (both_branches ? pass.branch ? "-" : "+" : "");
}

// The rows of the table that are printed: those with an idle stage and their neighbours, at most so
// many at either end, and a stretch in the middle.
std::vector<int64_t> shown_slots(const SlotTable& table) {
  constexpr int64_t kAll = 100, kEnd = 80, kMiddle = 6;
  std::vector<int64_t> shown;
  for (int64_t slot = 0; slot < table.slots; ++slot) {
    const bool near_end = std::min(slot, table.slots - 1 - slot) < kEnd;
    const bool idle_near = !table.full(slot) || !table.full(slot - 1) || !table.full(slot + 1);
    const bool middle = std::abs(2 * slot - table.slots) <= kMiddle;
    if (table.slots <= kAll || middle || (near_end && idle_near)) shown.push_back(slot);
  }
  return shown;
}

// `skipped` segments of the video, of so many slots each, belong after the middle of the table.
void print_slots(const SlotTable& table, int skipped, int64_t segment_slots) {
  std::printf("\n%-9s", "slot");
  for (const Column& column : table.columns) std::printf(" %9s", column.name.c_str());
  std::printf("    block.step%s of a forward, . is idle\n",
              table.branches == 2 ? " and branch (+ prompt, - negative prompt)" : "");
  int64_t next = 0;
  for (const int64_t slot : shown_slots(table)) {
    const bool late = 2 * slot > table.slots + 6;
    const int64_t moved = late ? skipped * segment_slots : 0;
    if (slot + moved > next)
      std::printf("... %lld slots\n", static_cast<long long>(slot + moved - next));
    next = slot + moved + 1;
    std::printf("%-9lld", static_cast<long long>(slot + moved));
    for (const Column& column : table.columns) {
      const auto found = column.forwards.find(slot);
      std::string cell = ".";
      if (found != column.forwards.end()) {
        Pass pass = found->second;
        if (late) pass.segment += skipped;
        cell = name_of(pass, table.branches == 2);
      }
      std::printf(" %9s", cell.c_str());
    }
    std::printf("\n");
  }
}

// The messages that one rank sends another outside of forwards.
struct LinkUse {
  int from, to;
  CommCounters::Count sent;
};

std::vector<LinkUse> links_of(const QueueTimeline& timeline) {
  std::map<std::pair<int, int>, CommCounters::Count> sums;
  for (const Plan& plan : timeline.plans)
    for (const Step& step : plan.steps)
      if (step.kind == Step::Kind::kSend) {
        CommCounters::Count& sum = sums[{plan.rank, step.peer}];
        sum.messages += timeline.repeats(step.pass);
        sum.bytes += timeline.repeats(step.pass) * step.bytes;
      }
  std::vector<LinkUse> links;
  for (const auto& [ranks, sent] : sums) links.push_back({ranks.first, ranks.second, sent});
  return links;
}

// The law that the idle slots follow, or why they follow none.
std::string law_of(const QueueTimeline& timeline, const SlotTable& table) {
  const QueuePlanConfig& config = timeline.config;
  const int64_t n = config.layout[Axis::kLayers],
                longest = std::min<int64_t>(std::ssize(config.steps), config.segments);
  const std::string stages = ", N = " + std::to_string(n) + " stages";
  if (longest <= n)
    return "the queue is never longer than " + std::to_string(longest) +
           " blocks, so its stages wait in every turn" + stages;
  if (config.longest_skip() > 0) return "skipped steps have no forwards" + stages;
  const int64_t law = table.branches == 1 ? n * n - 1 : 2 * (n * n / 4) + n - 1;
  if (law != table.idle()) return "the steps have different numbers of branches" + stages;
  return (table.branches == 1 ? "N^2 - 1" : "2 floor(N^2 / 4) + N - 1") + stages;
}

int64_t segment_slots(const QueueTimeline& timeline, const SlotTable& table) {
  return static_cast<int64_t>(table.columns.front().forwards.size()) / timeline.config.segments;
}

}  // namespace

void print_queue(const QueueTimeline& timeline, const Forecast& forecast) {
  const SlotTable table = table_of(timeline.config, timeline.plans);
  const int64_t each = segment_slots(timeline, table),
                slots = table.slots + timeline.skipped * each;
  std::printf("queue   %d blocks, %zu steps", timeline.config.segments + timeline.skipped,
              timeline.config.steps.size());
  if (timeline.segment_s > 0)
    std::printf("; a block per %.4g s while the queue is full", timeline.segment_s);
  std::printf("\nframes  the first after %.4g s, the last after %.4g s\n", forecast.first_frame_s,
              forecast.seconds);
  std::printf("bubbles %lld of %lld slots of a stage are idle (%.2f %%): %s\n",
              static_cast<long long>(table.idle()), static_cast<long long>(slots),
              100.0 * static_cast<double>(table.idle()) / static_cast<double>(slots),
              law_of(timeline, table).c_str());
  for (const LinkUse& link : links_of(timeline))
    std::printf("link    rank %d to %d: %s in %lld messages\n", link.from, link.to,
                format_bytes(static_cast<uint64_t>(link.sent.bytes)).c_str(),
                static_cast<long long>(link.sent.messages));
  print_slots(table, timeline.skipped, each);
}

Json to_json(const QueueTimeline& timeline, const Forecast& forecast) {
  const SlotTable table = table_of(timeline.config, timeline.plans);
  const int segments = timeline.config.segments + timeline.skipped;
  Json object{{"blocks", segments},
              {"steps", timeline.config.steps.size()},
              {"stages", timeline.config.layout[Axis::kLayers]},
              {"block_seconds", timeline.segment_s},
              {"first_frame_seconds", forecast.first_frame_s},
              {"last_frame_seconds", forecast.seconds},
              {"idle_slots", table.idle()},
              {"idle_law", law_of(timeline, table)}};
  for (const LinkUse& link : links_of(timeline))
    object["links"].push_back({{"from", link.from},
                               {"to", link.to},
                               {"messages", link.sent.messages},
                               {"bytes", link.sent.bytes}});
  QueuePlanConfig config = timeline.config;
  config.segments = segments;
  const auto columns = static_cast<int64_t>(table.columns.size());
  if (segments * segment_slots(timeline, table) * columns > kMostForwards) return object;
  for (const Column& column : table_of(config, plan_queue(config)).columns) {
    Json forwards = Json::array();
    for (const auto& [slot, pass] : column.forwards)
      forwards.push_back(Json::array({slot, pass.segment, pass.step, pass.branch}));
    object["slots"].push_back({{"rank", column.rank}, {"forwards", std::move(forwards)}});
  }
  return object;
}

std::string svg_of(const QueueTimeline& timeline, const std::string& title) {
  const bool both = timeline.config.layout[Axis::kCfg] == 1 &&
                    std::ranges::any_of(timeline.config.steps,
                                        [](const auto& step) { return step.branches == 2; });
  std::string more;
  if (timeline.skipped > 0)
    more = ", without " + std::to_string(timeline.skipped) + " blocks of the middle";
  return plan_svg(timeline.plans, timeline.times, title + "; block.step of every forward" + more,
                  [both](const Pass& pass) { return name_of(pass, both); });
}

}  // namespace weft
