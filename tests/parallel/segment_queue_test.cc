// Tests the plans of the segment queue: golden slots, soundness under every layout, the laws that
// the table alone shows, and faults that the checker must find.
#include "parallel/schedule/segment_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Kind = Step::Kind;

struct Numbers {
  int steps = 5, segments = 4, stages = 1;
  int64_t segment_frames = 4, context_frames = 2;
  int branches = 1;
};

QueuePlanConfig queue(const Numbers& n) {
  QueuePlanConfig config;
  config.steps.assign(n.steps, {.model = 0, .branches = n.branches});
  config.segments = n.segments;
  config.segment_frames = n.segment_frames;
  config.context_frames = n.context_frames;
  config.frame_tokens = 6;
  config.layers = {std::max(7, n.stages)};
  config.layout[Axis::kLayers] = n.stages;
  config.hidden_bytes = 96;
  config.latent_bytes = 256;
  return config;
}

std::optional<std::string> queue_fault(const QueuePlanConfig& config,
                                       const std::vector<Plan>& plans) {
  return check_plans(plans, queue_rules(config));
}

// The forwards of a rank, with the slots in which they begin.
struct QueueForward {
  Pass pass;
  int64_t slot;
  const Step* step;
};
std::vector<QueueForward> forwards(const std::vector<Plan>& plans, int rank) {
  const auto slots = slots_of(plans);
  std::vector<QueueForward> found;
  for (size_t s = 0; s < plans[rank].steps.size(); ++s)
    if (plans[rank].steps[s].kind == Kind::kCompute)
      found.push_back({plans[rank].steps[s].pass, slots[rank][s], &plans[rank].steps[s]});
  return found;
}

int64_t makespan(const std::vector<Plan>& plans) {
  int64_t end = 0;
  for (size_t rank = 0; rank < plans.size(); ++rank)
    for (const QueueForward& forward : forwards(plans, static_cast<int>(rank)))
      end = std::max(end, forward.slot + 1);
  return end;
}

// The published table of T = 5, B = 4, N = 3: (iteration, segment, step)@slot on stage 0. Stage r
// runs it r slots later.
TEST(SegmentQueue, GoldenSlots) {
  const std::vector<Plan> plans = plan_queue(queue({.stages = 3}));
  for (int rank = 0; rank < 3; ++rank) {
    std::string text;
    for (const QueueForward& f : forwards(plans, rank))
      text += "(" + std::to_string(f.step->turn) + "," + std::to_string(f.pass.segment) + "," +
              std::to_string(f.pass.step) + ")@" + std::to_string(f.slot - rank) + " ";
    EXPECT_EQ(text,
              "(0,0,0)@0 (1,1,0)@3 (1,0,1)@4 (2,2,0)@6 (2,1,1)@7 (2,0,2)@8 (3,3,0)@9 (3,2,1)@10 "
              "(3,1,2)@11 (3,0,3)@12 (4,3,1)@13 (4,2,2)@14 (4,1,3)@15 (4,0,4)@16 (5,3,2)@17 "
              "(5,2,3)@18 (5,1,4)@19 (6,3,3)@21 (6,2,4)@22 (7,3,4)@25 ");
  }
  EXPECT_EQ(makespan(plans), 28);
}

constexpr const char* kLastOfTwo = R"(rank 1 of 2, 27 steps
 turn 0
  enter step 0 writes [segment0.0@0]
  load step 0
  post step 0 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.0@0/4]
  await step 0 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.0@0/4]
  post step 0 segment 1 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.1@1/4]
  compute step 0 blocks [4, 7) of 7 tokens [0, 36) reads [buffer.0@0/4] writes [velocity.0@0/7]
  update step 0 tokens [0, 36) reads [segment0.0@0 velocity.0@0/7] writes [segment0.0@1]
  send step 0 tokens [0, 36) peer 0 latent 9216 bytes reads [segment0.0@1]
 turn 1
  enter step 0 segment 1 writes [segment1.0@1]
  await step 0 segment 1 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.1@1/4]
  post step 1 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.0@1.2/4]
  compute step 0 segment 1 blocks [4, 7) of 7 tokens [0, 36) reads [buffer.1@1/4] writes [velocity.0@1/7 keys.0.0@1/7]
  update step 0 segment 1 tokens [12, 36) reads [segment1.0@1 velocity.0@1/7] writes [segment1.0@2]
  send step 0 segment 1 tokens [12, 36) peer 0 latent 6144 bytes reads [segment1.0@2]
  await step 1 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.0@1.2/4]
  post step 1 segment 1 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.1@2/4]
  compute step 1 blocks [4, 7) of 7 tokens [0, 36) reads [buffer.0@1.2/4 keys.0.0@1/7] writes [velocity.0@1.2/7]
  wait step 1 reads [segment0.0@1]
  update step 1 tokens [0, 36) reads [segment0.0@1 velocity.0@1.2/7] writes [segment0.0@2]
  send step 1 tokens [0, 36) peer 0 latent 9216 bytes reads [segment0.0@2]
 turn 2
  await step 1 segment 1 tokens [0, 36) peer 0 hidden 3456 bytes writes [buffer.1@2/4]
  compute step 1 segment 1 blocks [4, 7) of 7 tokens [0, 36) reads [buffer.1@2/4] writes [velocity.0@2/7]
  wait step 1 segment 1 reads [segment1.0@2]
  update step 1 segment 1 tokens [12, 36) reads [segment1.0@2 velocity.0@2/7] writes [segment1.0@3]
  send step 1 segment 1 tokens [12, 36) peer 0 latent 6144 bytes reads [segment1.0@3]
  wait step 2 reads [segment0.0@2]
 turn 3
  wait step 3 reads [segment1.0@3]
)";

// A change of this text is a change of the schedule.
TEST(SegmentQueue, GoldenText) {
  const std::vector<Plan> plans = plan_queue(queue({.steps = 2, .segments = 2, .stages = 2}));
  EXPECT_EQ(to_string(plans[1]), kLastOfTwo);
}

// Law 18. Two branches are two forwards of one pass, one after the other.
TEST(SegmentQueue, IdleSlotsFirstBlockAndGapFollowTheirFormulas) {
  for (int stages = 1; stages <= 6; ++stages)
    for (int branches = 1; branches <= 2; ++branches)
      for (int steps = stages + 1; steps <= 12; steps += 3)
        for (int segments = stages + 1; segments <= 17; segments += 4) {
          const std::vector<Plan> plans = plan_queue(queue(
              {.steps = steps, .segments = segments, .stages = stages, .branches = branches}));
          const std::string what = "N " + std::to_string(stages) + " T " + std::to_string(steps) +
                                   " B " + std::to_string(segments) + " branches " +
                                   std::to_string(branches);
          const int64_t n = stages;
          EXPECT_EQ(makespan(plans) - branches * steps * segments,
                    branches == 1 ? n * n - 1 : 2 * (n * n / 4) + n - 1)
              << what;
          // When the last step of a segment has ended on the last stage.
          std::map<int, int64_t> ends;
          for (const QueueForward& f : forwards(plans, stages - 1))
            if (f.pass.step == steps - 1) ends[f.pass.segment] = f.slot + 1;
          int64_t first = branches == 1 ? n * (n - 1) / 2 + n - 1 : n * n / 4 + n - 1;
          for (int j = 0; j < steps; ++j) first += branches * std::min(j + 1, segments);
          EXPECT_EQ(ends[0], first) << what;
          for (int segment = 1; segment + steps <= segments; ++segment)  // the queue is full
            EXPECT_EQ(ends[segment] - ends[segment - 1], branches * steps) << what;
        }
}

Layout layout_of(std::initializer_list<std::pair<Axis, int>> axes) {
  Layout layout;
  for (const auto& [axis, parts] : axes) layout[axis] = parts;
  return layout;
}

// A stage computes one branch where cfg = 2.
TEST(SegmentQueue, BranchesSideBySideIdleAsOneBranchDoes) {
  for (int stages = 1; stages <= 4; ++stages) {
    QueuePlanConfig config = queue({.steps = 7, .segments = 9, .stages = stages, .branches = 2});
    config.layout[Axis::kCfg] = 2;
    EXPECT_EQ(makespan(plan_queue(config)) - 7 * 9, stages * stages - 1);
  }
}

// Every turn waits if the queue is not longer than the pipeline: its first pass begins N slots
// after the pass of the segment before in the last turn, and only d passes lie between.
TEST(SegmentQueue, AShortQueueStalls) {
  const auto idle = [](int steps, int segments) {
    const auto plans = plan_queue(queue({.steps = steps, .segments = segments, .stages = 8}));
    return makespan(plans) - int64_t{steps} * segments;
  };
  EXPECT_EQ(idle(50, 5), 231);
  // d is 1 ... 4 while the queue fills, 5 in 45 turns, and 4 ... 1 while it drains.
  EXPECT_EQ(idle(5, 50), (7 + 6 + 5 + 4) + 45 * 3 + (4 + 5 + 6 + 7) + 7);
}

std::vector<QueuePlanConfig> every_queue() {
  std::vector<QueuePlanConfig> all;
  for (const Layout& layout :
       {layout_of({}), layout_of({{Axis::kLayers, 2}}), layout_of({{Axis::kLayers, 3}}),
        layout_of({{Axis::kCfg, 2}}), layout_of({{Axis::kUlysses, 2}}),
        layout_of({{Axis::kUlysses, 3}}), layout_of({{Axis::kCfg, 2}, {Axis::kLayers, 2}}),
        layout_of({{Axis::kLayers, 2}, {Axis::kUlysses, 2}}), layout_of({{Axis::kLayers, 4}}),
        layout_of({{Axis::kCfg, 2}, {Axis::kUlysses, 2}}),
        layout_of({{Axis::kTensor, 2}, {Axis::kLayers, 2}}),
        layout_of({{Axis::kCfg, 2}, {Axis::kLayers, 3}, {Axis::kUlysses, 2}})})
    for (const auto& [segment, context] : {std::pair{4, 2}, {3, 3}, {2, 0}, {5, 1}})
      for (int steps : {1, 2, 5})
        for (int segments : {1, 2, 3, 7})
          for (int guided = 0; guided < 3; ++guided) {  // on both experts, the first, the second
            QueuePlanConfig config = queue({.steps = steps,
                                            .segments = segments,
                                            .stages = layout[Axis::kLayers],
                                            .segment_frames = segment,
                                            .context_frames = context,
                                            .branches = 2});
            config.layout = layout;
            config.layers = {7, 5};
            for (int i = 0; i < steps; ++i) {
              const int model = i < (steps + 1) / 2 ? 0 : 1;
              config.steps[i] = {model, guided == 0 || guided == model + 1 ? 2 : 1};
            }
            config.decoder = (steps + segments) % layout.ranks();
            config.control = segments % 2 == 1;
            all.push_back(config);
          }
  return all;
}

std::string described(const QueuePlanConfig& config) {
  std::string text = to_string(config.layout) + " P " + std::to_string(config.segment_frames) +
                     " C " + std::to_string(config.context_frames) + " B " +
                     std::to_string(config.segments) + " decoder " + std::to_string(config.decoder);
  for (const auto& step : config.steps)
    text += " " + std::to_string(step.model) + "x" + std::to_string(step.branches);
  return text;
}

TEST(SegmentQueue, IsSoundUnderEveryLayout) {
  for (const QueuePlanConfig& config : every_queue())
    ASSERT_EQ(queue_fault(config, plan_queue(config)), std::nullopt) << described(config);
}

TEST(SegmentQueue, WindowsJoinToThePlan) {
  for (const QueuePlanConfig& config : every_queue()) {
    if (config.segments < 3 || config.steps.size() < 2) continue;
    const std::vector<Plan> whole = plan_queue(config);
    const Range turns = config.turns();
    for (const int64_t length : {1, 4}) {
      std::vector<Plan> joined;
      for (int64_t begin = turns.begin; begin < turns.end; begin += length) {
        const auto window = plan_queue(config, {begin, std::min(begin + length, turns.end)});
        if (joined.empty())
          joined = window;
        else
          for (size_t rank = 0; rank < joined.size(); ++rank) append(joined[rank], window[rank]);
      }
      for (size_t rank = 0; rank < joined.size(); ++rank)
        ASSERT_EQ(to_string(joined[rank]), to_string(whole[rank]))
            << described(config) << " windows of " << length;
    }
  }
}

// A queue that goes on at a turn runs the passes that are left and no others.
TEST(SegmentQueue, GoesOnFromEveryTurn) {
  for (QueuePlanConfig config : every_queue()) {
    const auto after = [&](int turn) {
      std::multiset<std::string> steps;
      for (const Plan& plan : plan_queue(config))
        for (const Step& step : plan.steps)
          if (step.turn >= turn && step.tokens.size() > 0 &&
              (step.kind == Kind::kCompute || step.kind == Kind::kUpdate ||
               step.kind == Kind::kDecode))
            steps.insert(std::to_string(plan.rank) + to_string(step.pass) + to_string(step.tokens));
      return steps;
    };
    const auto last = static_cast<int>(config.turns().end);
    if (config.segments < 3 || last > 12) continue;
    for (int turn = 1; turn < last; turn += 3) {
      config.first_turn = 0;
      const auto expected = after(turn);
      config.first_turn = turn;
      ASSERT_EQ(queue_fault(config, plan_queue(config)), std::nullopt) << described(config) << turn;
      EXPECT_EQ(after(turn), expected) << described(config) << " from turn " << turn;
    }
  }
}

// Queues in which a step cache skips steps: some, or all but the first of each expert and the last.
std::vector<QueuePlanConfig> every_cached_queue() {
  std::vector<QueuePlanConfig> all;
  for (const QueuePlanConfig& config : every_queue())
    for (const int computed : {2, 3, 100}) {
      const auto steps = static_cast<int>(config.steps.size());
      QueuePlanConfig cached = config;
      for (int i = 1; i + 1 < steps; ++i)
        cached.steps[i].skipped =
            i % computed != 0 && config.steps[i].model == config.steps[i - 1].model;
      if (cached.longest_skip() > 0) all.push_back(std::move(cached));
    }
  return all;
}

TEST(CachedSegmentQueue, IsSoundUnderEveryLayoutAndInWindows) {
  const auto queues = every_cached_queue();
  EXPECT_GT(queues.size(), 100u);
  for (const QueuePlanConfig& config : queues) {
    const std::vector<Plan> whole = plan_queue(config);
    ASSERT_EQ(queue_fault(config, whole), std::nullopt) << described(config);
    const Range turns = config.turns();
    std::vector<Plan> joined = plan_queue(config, {0, 1});
    for (int64_t begin = 1; begin < turns.end; begin += 3) {
      const auto window = plan_queue(config, {begin, std::min(begin + 3, turns.end)});
      for (size_t rank = 0; rank < joined.size(); ++rank) append(joined[rank], window[rank]);
    }
    for (size_t rank = 0; rank < joined.size(); ++rank)
      ASSERT_EQ(to_string(joined[rank]), to_string(whole[rank])) << described(config);
  }
}

TEST(CachedSegmentQueue, GoesOnFromEveryTurn) {
  for (QueuePlanConfig config : every_cached_queue()) {
    const auto last = static_cast<int>(config.turns().end);
    if (config.segments < 3 || last > 12) continue;
    for (int turn = 1; turn < last; ++turn) {
      config.first_turn = turn;
      ASSERT_EQ(queue_fault(config, plan_queue(config)), std::nullopt) << described(config) << turn;
    }
  }
}

// Only the last stage has a part in a skipped pass, and it sends velocities and rows of the next
// step alone. A pass that is computed sees the keys that the segment after has left last, and so
// many turns are between them as steps were skipped.
TEST(CachedSegmentQueue, ASkippedPassBelongsToTheLastStageAndTheNewestKeysAreRead) {
  for (const QueuePlanConfig& config : every_cached_queue())
    for (const Plan& plan : plan_queue(config)) {
      const Mesh mesh(config.layout);
      const bool last = mesh.at(Axis::kLayers, plan.rank) + 1 == config.layout[Axis::kLayers];
      std::map<std::array<int, 3>, int>
          left;  // by segment, branch and expert: the newest keys' step
      for (const Step& step : plan.steps) {
        const auto [segment, i, branch] =
            std::tuple(step.pass.segment, step.pass.step, step.pass.branch);
        EXPECT_FALSE(step.payload == Payload::kHidden && config.steps[i].skipped);
        if (step.kind != Kind::kCompute) continue;
        const bool skipped = config.steps[i].skipped;
        EXPECT_EQ(step.reuses, skipped);
        EXPECT_TRUE(last || !skipped);
        int newest = -1;
        for (const SlotVersion& v : step.reads)
          if (v.slot.kind == SlotKind::kKeys) newest = v.turn - segment - 1;
        const auto found = left.find({segment + 1, branch, step.pass.model});
        if (!skipped) {
          ASSERT_EQ(newest, found == left.end() ? -1 : found->second)
              << described(config) << " " << to_string(step);
          EXPECT_EQ(step.stale, newest < 0 ? 0 : i - 1 - newest);
          if (config.context_frames > 0) left[{segment, branch, step.pass.model}] = i;
        }
      }
    }
}

// A stretch of n skipped steps has n + 1 sets, which segments share in turns.
TEST(CachedSegmentQueue, SetsDoNotGrowWithTheVideo) {
  QueuePlanConfig config = queue({.steps = 9, .segments = 40, .stages = 2, .branches = 2});
  for (const int step : {2, 3, 5}) config.steps[step].skipped = true;
  EXPECT_EQ(config.kept_sets(), 1 + 3 + 2);
  EXPECT_EQ(config.longest_skip(), 2);
  EXPECT_EQ(config.kept_set(7, 0), 0);
  EXPECT_EQ(config.kept_set(7, 1), 1 + 7 % 3);
  EXPECT_EQ(config.kept_set(8, 4), 4 + 8 % 2);
  EXPECT_EQ(config.computed(3), 1);
  for (const Plan& plan : plan_queue(config)) {
    std::set<SlotId> keys, added;
    for (const Step& step : plan.steps)
      for (const SlotVersion& v : step.writes) {
        if (v.slot.kind == SlotKind::kKeys) keys.insert(v.slot);
        if (v.slot.kind == SlotKind::kAdded) added.insert(v.slot);
      }
    EXPECT_EQ(std::ssize(keys), 2 * config.kept_sets());
    EXPECT_EQ(std::ssize(added), plan.rank == 1 ? 2 * (config.kept_sets() - 1) : 0);
  }
  config.segments = 2;
  EXPECT_EQ(config.kept_sets(), 1 + 2 + 2);
}

// Law 5, on every rank: each step of each segment once, in turns, from the tail to the head. Right
// context where there is one, prefix from the second segment on.
TEST(SegmentQueue, EveryPassOnceInOrderWithItsContexts) {
  for (const QueuePlanConfig& config : every_queue()) {
    const std::vector<Plan> plans = plan_queue(config);
    const auto steps = static_cast<int>(config.steps.size());
    for (const Plan& plan : plans) {
      const Mesh mesh(config.layout);
      const bool first = mesh.at(Axis::kLayers, plan.rank) == 0;
      std::vector<std::array<int, 3>> done;
      for (const Step& step : plan.steps) {
        if (step.kind != Kind::kCompute) continue;
        const int k = step.pass.segment, i = step.pass.step;
        EXPECT_EQ(step.turn, k + i);
        done.push_back({k + i, -k, step.pass.branch});
        const bool right = std::ranges::any_of(
            step.reads, [&](const SlotVersion& v) { return v.slot.kind == SlotKind::kKeys; });
        EXPECT_EQ(right, i >= 1 && k + 1 < config.segments && config.context_frames > 0 &&
                             config.steps[i].model == config.steps[i - 1].model)
            << described(config) << " " << to_string(step);
        int64_t before = 0;  // rows of the segment before
        for (int part = 0; part < config.layout.sequence() && k > 0; ++part)
          for (const SlotVersion& v : step.reads)
            if (first && v.slot == config.segment_slot(k - 1, part)) {
              ++before;
              EXPECT_EQ(v.turn, step.turn);  // law 8: z_{k-1}^(i+1)
            }
        const bool prefix =
            first && k > 0 && prefix_tokens(config, mesh.sequence_index(plan.rank)).size() > 0;
        EXPECT_EQ(before > 0, prefix) << described(config) << " " << to_string(step);
      }
      EXPECT_TRUE(std::ranges::is_sorted(done));
      EXPECT_EQ(std::ranges::adjacent_find(done), done.end());
      int expected = 0;
      for (int i = 0; i < steps; ++i)
        for (int branch = 0; branch < config.steps[i].branches; ++branch)
          if (config.layout[Axis::kCfg] == 1 || mesh.at(Axis::kCfg, plan.rank) == branch)
            expected += config.segments;
      EXPECT_EQ(std::ssize(done), expected) << described(config);
    }
  }
}

// Law 17: the bytes of a job with `layers` alone, and equal hidden messages.
TEST(SegmentQueue, BytesFollowTheirFormula) {
  for (int stages = 1; stages <= 4; ++stages)
    for (int branches = 1; branches <= 2; ++branches)
      for (int segments : {1, 3, 8}) {
        const QueuePlanConfig config =
            queue({.steps = 6, .segments = segments, .stages = stages, .branches = branches});
        const int64_t frames = config.segment_frames + config.context_frames,
                      s = config.frame_tokens;
        std::map<std::pair<int, Payload>, int64_t> sent;  // by rank
        std::set<int64_t> hidden;                         // sizes
        for (const Plan& plan : plan_queue(config))
          for (const Step& step : plan.steps) {
            if (step.kind != Kind::kSend) continue;
            sent[{plan.rank, step.payload}] += step.bytes;
            if (step.payload == Payload::kHidden) hidden.insert(step.bytes);
          }
        std::map<std::pair<int, Payload>, int64_t> expected;
        for (int rank = 0; rank + 1 < stages; ++rank)
          expected[{rank, Payload::kHidden}] = 6 * segments * branches * frames * s * 96;
        if (stages > 1)
          expected[{stages - 1, Payload::kLatent}] =
              6 * (segments * config.segment_frames + config.context_frames) * s * 256;
        EXPECT_EQ(sent, expected);
        EXPECT_LE(hidden.size(), 1u);
      }
}

// Law 19: a stage has one slot of keys per branch, and the segments' slots do not depend on B.
TEST(SegmentQueue, SlotsDoNotGrowWithTheVideo) {
  for (int stages : {1, 3})
    for (int steps : {3, 6})
      for (int segments : {2, 7, 40}) {
        const QueuePlanConfig config =
            queue({.steps = steps, .segments = segments, .stages = stages, .branches = 2});
        for (const Plan& plan : plan_queue(config)) {
          std::map<SlotKind, std::set<SlotId>> slots;
          for (const Step& step : plan.steps)
            for (const SlotVersion& v : step.writes) slots[v.slot.kind].insert(v.slot);
          EXPECT_LE(slots[SlotKind::kKeys].size(), 2u);
          EXPECT_LE(slots[SlotKind::kBuffer].size(), 3u);
          EXPECT_LE(slots[SlotKind::kVelocity].size(), 2u);
          EXPECT_LE(std::ssize(slots[SlotKind::kSegment]), std::min(steps, segments) + 1);
          EXPECT_LE(slots.size(), 4u);
        }
      }
}

// The keys of a neighbour that has overwritten them, because its set is too small.
TEST(CachedSegmentQueueFaults, KeysOfAnOlderPass) {
  QueuePlanConfig config = queue({.steps = 6, .segments = 6, .stages = 2});
  for (const int step : {2, 3}) config.steps[step].skipped = true;
  std::vector<Plan> plans = plan_queue(config);
  EXPECT_EQ(queue_fault(config, plans), std::nullopt);
  for (Plan& plan : plans)
    for (Step& step : plan.steps)
      for (auto* list : {&step.reads, &step.writes})
        for (SlotVersion& v : *list)
          if (v.slot.kind != SlotKind::kSegment && v.slot.part == 3) v.slot.part = 2;
  EXPECT_NE(queue_fault(config, plans), std::nullopt);
}

// Plans with faults of careless schedules, which the checker must find.
class Planted {
 public:
  explicit Planted(const Numbers& n) : config(queue(n)), plans(plan_queue(config)) {}

  Step& find(int rank, Kind kind, int segment, int step) {
    for (Step& s : plans[rank].steps)
      if (s.kind == kind && s.pass.segment == segment && s.pass.step == step) return s;
    ADD_FAILURE();
    return plans[rank].steps[0];
  }
  std::string found() const { return queue_fault(config, plans).value_or(""); }

  QueuePlanConfig config;
  std::vector<Plan> plans;
};

// The prefix is read before it has arrived, so that timing decides which version it is.
TEST(SegmentQueueFaults, APrefixThatIsNotAwaited) {
  Planted p({.stages = 2});
  auto& steps = p.plans[0].steps;
  const SlotVersion prefix{p.config.segment_slot(0, 0), 2};
  const auto await = std::ranges::find_if(
      steps, [&](const Step& s) { return s.kind == Kind::kAwait && s.writes[0] == prefix; });
  ASSERT_NE(await, steps.end());
  const auto forward = std::ranges::find(await, steps.end(), Kind::kCompute, &Step::kind);
  std::rotate(await, await + 1, forward + 1);  // the forward comes first
  EXPECT_TRUE(contains(p.found(), "while a receive is posted"));
}

TEST(SegmentQueueFaults, APrefixOfTheStepBefore) {
  Planted p({.stages = 1});
  for (SlotVersion& v : p.find(0, Kind::kCompute, 1, 1).reads)
    if (v.slot == p.config.segment_slot(0, 0)) --v.turn;
  EXPECT_TRUE(contains(p.found(), "but it holds"));
}

// In the drain a forward runs on rows that are one step old.
TEST(SegmentQueueFaults, RowsOfTheStepBeforeInTheDrain) {
  Planted p({.stages = 2});
  const int last = p.config.segments - 1;
  const SlotVersion fresh{p.config.segment_slot(last, 0), last + 3};
  auto& steps = p.plans[0].steps;
  std::erase_if(steps, [&](const Step& s) {
    return (s.kind == Kind::kAwait || s.kind == Kind::kPost) && s.writes[0] == fresh;
  });
  for (SlotVersion& v : p.find(0, Kind::kCompute, last, 3).reads)
    if (v == fresh) --v.turn;
  EXPECT_TRUE(contains(p.found(), "too old or too new"));
}

// The keys of the turn before, which are of no segment that is one step back.
TEST(SegmentQueueFaults, KeysOfTheTurnBefore) {
  Planted p({.stages = 2});
  Step& tail = p.find(1, Kind::kCompute, 2, 0);
  tail.reads.push_back({keys_slot(0, 0), 1, 7, 0});
  EXPECT_NE(p.found(), "");
  tail.reads.back() = {keys_slot(0, 0), 2, 7, 0};
  EXPECT_NE(p.found(), "");
}

// The keys of the pass before the last.
TEST(SegmentQueueFaults, KeysOfAnotherBlock) {
  Planted p({.stages = 1});
  for (SlotVersion& v : p.find(0, Kind::kCompute, 1, 2).reads)
    if (v.slot == keys_slot(0, 0)) v.order -= 2;
  EXPECT_TRUE(contains(p.found(), "but it holds"));
}

// One buffer for hidden rows that are received and computed at once.
TEST(SegmentQueueFaults, HiddenRowsWithoutASecondBuffer) {
  Planted p({.stages = 2});
  for (Step& step : p.plans[1].steps)
    for (auto* list : {&step.reads, &step.writes})
      for (SlotVersion& v : *list)
        if (v.slot.kind == SlotKind::kBuffer) v.slot = buffer_slot(0);
  EXPECT_NE(p.found(), "");
}

// Both ends agree on a word, but it is not that of the next turn.
TEST(SegmentQueueFaults, AWordOfAnotherTurn) {
  for (const int by : {-1, 1}) {
    Planted p({.stages = 2});
    p.config.control = true;
    p.plans = plan_queue(p.config);
    ASSERT_EQ(p.found(), "");
    int words = 0;
    for (Plan& plan : p.plans)
      for (Step& step : plan.steps)
        for (auto* list : {&step.reads, &step.writes})
          for (SlotVersion& v : *list) {
            if (v.slot != kWordSlot || step.turn != 1) continue;
            EXPECT_TRUE(step.kind == Kind::kWord || step.payload == Payload::kControl);
            words += v.turn == 2;
            if (v.turn == 2) v.turn += by;
          }
    EXPECT_GE(words, 4);  // made, sent, posted and awaited
    EXPECT_NE(p.found(), "") << by;
  }
}

TEST(SegmentQueueFaults, AnExpertThatIsNotLoaded) {
  Planted p({.stages = 1});
  p.config.layers = {7, 5};
  p.config.steps.back().model = 1;
  p.plans = plan_queue(p.config);
  EXPECT_EQ(p.found(), "");
  EXPECT_NE(check_plans(p.plans), std::nullopt);  // both experts must be resident
  std::erase_if(p.plans[0].steps,
                [](const Step& s) { return s.kind == Kind::kLoad && s.pass.model == 1; });
  EXPECT_TRUE(contains(p.found(), "before its expert is loaded"));
}

}  // namespace
}  // namespace weft::test
