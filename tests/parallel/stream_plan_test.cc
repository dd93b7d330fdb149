// Tests the plans of streams: they are sound for every split, number of segments and credits, keep
// the pipeline full, and no rank runs ahead further than its credits. The published order of sends
// and receives deadlocks in the same checker.
#include "parallel/schedule/stream_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "parallel/schedule/plan_timing.h"

namespace weft::test {
namespace {

using Kind = Step::Kind;

Layout stream_split(int steps, int layers = 1, int tensor = 1) {
  Layout layout;
  layout[Axis::kStep] = steps;
  layout[Axis::kLayers] = layers;
  layout[Axis::kTensor] = tensor;
  return layout;
}

StreamPlanConfig stream_of(const Layout& layout, int steps = 4, int segments = 9) {
  return {.steps = steps,
          .segments = segments,
          .segment_frames = 3,
          .frame_tokens = 5,
          .sink_frames = 1,
          .layers = 4,
          .layout = layout,
          .hidden_bytes = 48,
          .latent_bytes = 64};
}

// The forwards of all ranks as (segment, step), sinks apart, with the time at which each ends, if a
// forward of all transformer blocks takes 1 and nothing else takes any time.
struct Timed {
  std::map<std::pair<int, int>, double> forwards;
  std::map<int, double> decoded;  // by segment
};

Timed timed(const StreamPlanConfig& config) {
  const std::vector<Plan> plans = plan_stream(config);
  const auto times = time_plans(plans, {}, {}, [&](const Step& step, int) {
    const bool forward = step.kind == Kind::kCompute && step.pass.micro == 0;
    return forward ? double(step.blocks.end - step.blocks.begin) / config.layers : 0.0;
  });
  Timed out;
  for (size_t rank = 0; rank < plans.size(); ++rank)
    for (size_t i = 0; i < plans[rank].steps.size(); ++i) {
      const Step& step = plans[rank].steps[i];
      const double end = times[rank][i].end_s;
      if (step.kind == Kind::kCompute && step.pass.micro == 0)
        out.forwards[{step.pass.segment, step.pass.step}] = end;
      if (step.kind == Kind::kDecode) out.decoded[step.pass.segment] = end;
    }
  return out;
}

// Laws 9 and 35.
TEST(StreamPlan, IsSoundForEverySplit) {
  for (int steps : {1, 2, 3, 4, 7})
    for (int groups = 1; groups <= steps; ++groups)
      for (int layers : {1, 2, 3})
        for (int segments : {1, 2, 3, 5, 11})
          for (int credits : {1, 2, 3, 4})
            for (int swap : {0, 1, 2, 4})
              for (bool apart : {false, true}) {
                StreamPlanConfig config = stream_of(stream_split(groups, layers), steps, segments);
                config.credits = credits;
                config.swap_segment = swap;
                config.decodes_apart = apart;
                const auto fault = check_plans(plan_stream(config), stream_rules(config));
                ASSERT_FALSE(fault) << *fault << " steps " << steps << " groups " << groups
                                    << " layers " << layers << " blocks " << segments << " credits "
                                    << credits << " swap " << swap << " decoder apart " << apart;
              }
}

TEST(StreamPlan, TensorRanksDoTheSame) {
  const StreamPlanConfig config = stream_of(stream_split(2, 2, 2));
  const auto fault = check_plans(plan_stream(config), stream_rules(config));
  EXPECT_FALSE(fault) << *fault;
}

// A sink's joint rows travel between stages, which every one of them computes; its rows of the
// latent are those of its tokens.
TEST(StreamPlan, JointRowsOfSinksAreHiddenRowsAlone) {
  StreamPlanConfig config = stream_of(stream_split(2, 2));
  config.swap_segment = 4;
  config.sink_joint_rows = 7;
  const std::vector<Plan> plans = plan_stream(config);
  const auto fault = check_plans(plans, stream_rules(config));
  EXPECT_FALSE(fault) << *fault;
  std::map<std::pair<bool, Payload>, std::set<int64_t>> bytes;  // of sinks and segments
  for (const Plan& plan : plans)
    for (const Step& step : plan.steps)
      if (step.kind == Kind::kSend && step.payload != Payload::kControl)
        bytes[{step.pass.micro == StreamPlanConfig::kSinkPass, step.payload}].insert(step.bytes);
  EXPECT_EQ((bytes[{true, Payload::kHidden}]), (std::set<int64_t>{(5 + 7) * 48}));
  EXPECT_EQ((bytes[{true, Payload::kLatent}]), (std::set<int64_t>{5 * 64}));
  EXPECT_EQ((bytes[{false, Payload::kHidden}]), (std::set<int64_t>{15 * 48, (15 + 1) * 48}));
}

// A rank gets the word of a segment once, or twice where two ranks send it rows of the segment that
// it does not know yet. A decoder gets no signal.
TEST(StreamPlan, TheWordTravelsInTheFirstMessageOfASegment) {
  for (const Layout& layout : {stream_split(3), stream_split(1, 3), stream_split(2, 2)}) {
    StreamPlanConfig config = stream_of(layout);
    config.decodes_apart = true;
    config.signal_bytes = 100;  // 116 with the rest: 2 rows of the latent, 3 hidden ones
    const std::vector<Plan> plans = plan_stream(config);
    const auto fault = check_plans(plans, stream_rules(config));
    EXPECT_FALSE(fault) << *fault;
    std::map<std::pair<int, int>, int> brought;  // by rank and segment
    for (const Plan& plan : plans) {
      const bool decodes = plan.rank == config.decoder();
      for (const Step& step : plan.steps) {
        if (step.kind != Kind::kAwait || step.payload == Payload::kControl) continue;
        if (step.pass.micro == StreamPlanConfig::kSinkPass) continue;
        const bool hidden = step.payload == Payload::kHidden;
        const int64_t row = hidden ? 48 : 64, more = step.bytes - 15 * row;
        int& count = brought[{plan.rank, step.pass.segment}];
        EXPECT_TRUE(count == 0 || more == 0 || !hidden || config.group(0).end <= step.pass.step);
        EXPECT_TRUE(more == 0 || more == (decodes ? 64 : hidden ? 3 * 48 : 2 * 64)) << more;
        count += more > 0;
      }
    }
    for (int rank = 1; rank < config.ranks(); ++rank)
      for (int segment = 0; segment < config.segments; ++segment) {
        const int count = brought.at({rank, segment});
        EXPECT_TRUE(count == 1 || (count == 2 && layout[Axis::kStep] * layout[Axis::kLayers] == 4))
            << rank << " " << count;
      }
  }
}

TEST(StreamPlan, HasEveryForwardOnceAndDecodesInOrder) {
  for (const Layout& layout : {stream_split(1), stream_split(3), stream_split(4),
                               stream_split(1, 2), stream_split(2, 2)}) {
    StreamPlanConfig config = stream_of(layout);
    config.swap_segment = 4;
    std::map<std::tuple<int, int, int>, int> count;
    std::map<int, std::vector<int>> sinks;  // the segments before which each rank makes a sink
    std::vector<int> decoded;
    for (const Plan& plan : plan_stream(config))
      for (const Step& step : plan.steps) {
        if (step.kind == Kind::kDecode) decoded.push_back(step.pass.segment);
        if (step.kind != Kind::kCompute) continue;
        if (step.pass.micro == StreamPlanConfig::kSinkPass)
          sinks[plan.rank].push_back(step.pass.segment);
        else
          for (int layer = step.blocks.begin; layer < step.blocks.end; ++layer)
            ++count[{step.pass.segment, step.pass.step, layer}];
      }
    EXPECT_EQ(count.size(), size_t(config.segments * config.steps * config.layers));
    for (const auto& [key, times] : count) EXPECT_EQ(times, 1);
    EXPECT_EQ(sinks.size(), size_t(layout.ranks()));
    for (const auto& [rank, segments] : sinks) EXPECT_EQ(segments, (std::vector{0, 4})) << rank;
    ASSERT_EQ(std::ssize(decoded), config.segments);
    EXPECT_TRUE(std::ranges::is_sorted(decoded));
  }
}

// Law 8: the first segment takes T forwards, and then one comes every ceil(T / D), of all of a
// rank's work; stages go around without gaps.
TEST(StreamPlan, FirstBlockAndPeriodFollowTheFormulas) {
  for (int groups : {1, 2, 3, 4}) {
    const Timed timed_plan = timed(stream_of(stream_split(groups), 4, 20));
    EXPECT_DOUBLE_EQ(timed_plan.decoded.at(0), 4);
    for (int segment = 1; segment < 20; ++segment)
      EXPECT_DOUBLE_EQ(timed_plan.decoded.at(segment) - timed_plan.decoded.at(segment - 1),
                       (4 + groups - 1) / groups)
          << groups;
  }
  const Timed ring = timed(stream_of(stream_split(1, 2), 4, 21));
  // The last stage decodes when its turn has ended, which is half a forward of segment 1 later.
  EXPECT_DOUBLE_EQ(ring.decoded.at(0), 4.5);
  EXPECT_NEAR((ring.decoded.at(20) - ring.decoded.at(4)) / 16, 2, 0.1);
}

// The swap waits for nothing where the pipeline is no longer than it.
TEST(StreamPlan, ASwapDrainsNothing) {
  StreamPlanConfig config = stream_of(stream_split(4), 4, 20);
  const Timed without = timed(config);
  config.swap_segment = 4;
  const Timed with = timed(config);
  EXPECT_EQ(with.decoded, without.decoded);
  config.swap_segment = 2;
  EXPECT_GT(timed(config).decoded.at(19), without.decoded.at(19));
}

// A window of turns is that part of the plan.
TEST(StreamPlan, WindowsJoinToThePlan) {
  for (const Layout& layout : {stream_split(1), stream_split(3), stream_split(2, 2)}) {
    StreamPlanConfig config = stream_of(layout);
    config.swap_segment = 4;
    config.decodes_apart = true;
    const std::vector<Plan> whole = plan_stream(config);
    for (int rank = 0; rank < config.ranks(); ++rank) {
      Plan joined = plan_stream(config, {0, 1}, rank);
      for (int turn = 1; turn < config.turns().end; turn += 2)
        append(joined,
               plan_stream(config, {turn, std::min<int64_t>(turn + 2, config.turns().end)}, rank));
      EXPECT_EQ(to_string(joined), to_string(whole[rank])) << rank;
    }
  }
}

// The steps of so many turns, with segments and turns counted from these.
std::vector<std::string> steps_from(const StreamPlanConfig& config, int rank, int segment,
                                    int turns) {
  const int first = config.turn(segment, 0);
  std::vector<std::string> out;
  for (Step step : plan_stream(config, {first, first + turns}, rank).steps) {
    step.turn -= first;
    if (step.kind == Kind::kWait)
      step.pass = {};  // it belongs to none
    else
      step.pass.segment -= segment;
    for (auto* versions : {&step.reads, &step.writes})
      for (SlotVersion& version : *versions) version.turn -= first;
    out.push_back(to_string(step));
  }
  return out;
}

// A run checks the plan of a brief stream in place of its own, which may be endless. The brief one
// is the same until it ends, and what it has by then is repeated for ever.
TEST(StreamPlan, ABriefStreamHasWhatALongOneRepeats) {
  for (const Layout& layout :
       {stream_split(1), stream_split(3), stream_split(1, 2), stream_split(2, 2)})
    for (const int credits : {1, 2, 3})
      for (const bool apart : {false, true}) {
        StreamPlanConfig endless = stream_of(layout);
        endless.segments = StreamPlanConfig::kEndless;
        endless.swap_segment = 4;
        endless.credits = credits;
        endless.decodes_apart = apart;
        const StreamPlanConfig brief = endless.brief();
        EXPECT_FALSE(check_plans(plan_stream(brief), stream_rules(brief)));
        // Slots are used in turn, by as many segments as these.
        const int settled = brief.settled_segment(), later = settled + credits * endless.live();
        const int turns =
            brief.interval() * (brief.segments - settled - brief.under_way() - credits);
        ASSERT_GT(turns, 0);
        for (int rank = 0; rank < brief.ranks(); ++rank) {
          EXPECT_EQ(steps_from(brief, rank, 0, brief.turn(settled, 0) + turns),
                    steps_from(endless, rank, 0, brief.turn(settled, 0) + turns));
          EXPECT_EQ(steps_from(endless, rank, settled, turns),
                    steps_from(endless, rank, later, turns));
        }
      }
}

// A rank that learns of the last segment with its rows has planned nothing by then that the plan of
// all segments would not have.
TEST(StreamPlan, TheEndIsKnownEarlyEnough) {
  for (int steps : {1, 2, 4, 5})
    for (int groups = 1; groups <= steps; ++groups)
      for (int layers : {1, 2, 3})
        for (int credits : {1, 2, 4})
          for (int swap : {0, 4})
            for (int last : {0, 1, 5, 9}) {
              StreamPlanConfig endless = stream_of(stream_split(groups, layers), steps);
              endless.segments = StreamPlanConfig::kEndless;
              endless.credits = credits;
              endless.swap_segment = swap;
              endless.decodes_apart = true;
              StreamPlanConfig known = endless;
              known.segments = endless.end_after(last);
              for (int rank = 0; rank < known.ranks(); ++rank) {
                const int group =
                    rank < known.layout.ranks() ? Mesh(known.layout).at(Axis::kStep, rank) : -1;
                const auto first = group < 0 ? steps : int(known.group(group).begin);
                Plan joined;
                for (int64_t turn = 0, end; turn < known.turns().end; turn = end) {
                  const StreamPlanConfig& config = turn > known.turn(last, first) ? known : endless;
                  end = std::min(turn + config.window(), config.turns().end);
                  Plan next = plan_stream(config, {turn, end}, rank);
                  if (turn == 0)
                    joined = std::move(next);
                  else
                    append(joined, next);
                }
                ASSERT_EQ(to_string(joined), to_string(plan_stream(known, known.turns(), rank)))
                    << rank << " steps " << steps << " groups " << groups << " layers " << layers
                    << " credits " << credits << " swap " << swap << " last " << last;
              }
            }
}

// Without waiting for any message to be taken, a rank has sent at most `credits` segments that its
// successor has not computed with.
TEST(StreamPlan, NoRankRunsAheadFurtherThanItsCredits) {
  for (int credits : {1, 2, 4}) {
    StreamPlanConfig config = stream_of(stream_split(4), 4, 30);
    config.credits = credits;
    config.decodes_apart = true;
    const std::vector<Plan> plans = plan_stream(config);
    std::mt19937 random(credits);
    std::vector<size_t> next(plans.size());
    std::map<std::pair<int, int>, std::vector<Tag>> sent;
    std::vector<int> rows_sent(plans.size()), used(plans.size());
    int most = 0;
    const auto key = [](const Step& step) { return Tag{.kind = step.payload, .pass = step.pass}; };
    // A send takes no time and is never waited for; some rank goes on as long as one can.
    for (bool moved = true; moved;) {
      moved = false;
      std::vector<size_t> order(plans.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::ranges::shuffle(order, random);
      for (const size_t rank : order) {
        while (next[rank] < plans[rank].steps.size()) {
          const Step& step = plans[rank].steps[next[rank]];
          if (step.kind == Kind::kAwait || step.kind == Kind::kReceive) {
            auto& arrived = sent[{step.peer, plans[rank].rank}];
            const auto found = std::ranges::find_if(arrived, [&](const Tag& tag) {
              return tag.kind == key(step).kind && tag.pass == key(step).pass;
            });
            if (found == arrived.end()) break;
            arrived.erase(found);
          }
          if (step.kind == Kind::kSend) sent[{plans[rank].rank, step.peer}].push_back(key(step));
          const bool sink = step.pass.micro == StreamPlanConfig::kSinkPass;
          rows_sent[rank] += step.kind == Kind::kSend && step.payload == Payload::kLatent && !sink;
          used[rank] += (step.kind == Kind::kCompute || step.kind == Kind::kDecode) && !sink;
          if (rank + 1 < plans.size()) {
            most = std::max(most, rows_sent[rank] - used[rank + 1]);
            ASSERT_LE(rows_sent[rank] - used[rank + 1], credits);
          }
          ++next[rank];
          moved = true;
        }
      }
    }
    for (size_t rank = 0; rank < plans.size(); ++rank)
      EXPECT_EQ(next[rank], plans[rank].steps.size()) << rank;
    EXPECT_EQ(most, credits);
  }
}

// The same of the stages of a group, where they have the fewest steps: the first one, which alone
// decides when a segment enters, computes with no segment that is further ahead of the last one.
TEST(StreamPlan, NoStageRunsAheadFurtherThanItsCredits) {
  for (const auto& [steps, groups] : {std::pair{1, 1}, {2, 2}, {4, 4}, {4, 1}, {4, 2}})
    for (const int credits : {1, 2, 4}) {
      StreamPlanConfig config = stream_of(stream_split(groups, 3), steps, 40);
      config.credits = credits;
      const std::vector<Plan> plans = plan_stream(config);
      const Mesh mesh(config.layout);
      std::array<int, kAxes> at{};
      at[static_cast<int>(Axis::kLayers)] = 2;
      const int first = 0, last = mesh.rank_at(at);
      // The last stage computes only when nobody else can go on.
      std::vector<size_t> next(plans.size());
      std::map<std::pair<int, int>, std::vector<const Step*>> sent;
      std::vector<int> newest(plans.size(), -1);
      const auto goes_on = [&](int rank) {
        const Step& step = plans[rank].steps[next[rank]];
        if (step.kind == Kind::kAwait) {
          auto& arrived = sent[{step.peer, rank}];
          const auto found = std::ranges::find_if(arrived, [&](const Step* message) {
            return message->payload == step.payload && message->pass == step.pass;
          });
          if (found == arrived.end()) return false;
          arrived.erase(found);
        }
        if (step.kind == Kind::kSend) sent[{rank, step.peer}].push_back(&step);
        if (step.kind == Kind::kCompute) newest[rank] = std::max(newest[rank], step.pass.segment);
        ++next[rank];
        return true;
      };
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t rank = 0; rank < plans.size(); ++rank)
          while (int(rank) != last && next[rank] < plans[rank].steps.size() && goes_on(int(rank)))
            moved = true;
        ASSERT_LE(newest[first] - newest[last], credits + config.layout[Axis::kLayers])
            << steps << " " << groups;
        if (next[last] < plans[last].steps.size()) moved |= goes_on(last);
      }
      for (size_t rank = 0; rank < plans.size(); ++rank)
        EXPECT_EQ(next[rank], plans[rank].steps.size()) << rank;
    }
}

// The published streaming pipeline (4 steps and a decoder, blocking sends). From segment 8 on the
// decoder sends the first rank features, which that rank takes at segment 12, 4 segments later;
// they follow the latents from rank to rank. It sends them before it receives the segment that it
// decodes, or after it. Slots are distinct, so the order alone can be at fault.
std::vector<Plan> published_order(int segments, bool receives_first) {
  constexpr int kSteps = 4, kFirstSent = 8, kLag = 4;
  std::vector<Plan> plans;
  for (int rank = 0; rank <= kSteps; ++rank) {
    Plan plan{.rank = rank, .ranks = kSteps + 1, .turns = {0, 1}};
    SlotId slot{.kind = SlotKind::kSegment};
    const auto message = [](Kind kind, int segment, int peer, Payload payload) {
      return Step{
          .kind = kind, .pass = {.segment = segment}, .peer = peer, .payload = payload, .bytes = 8};
    };
    const auto send = [&](int segment, int peer, Payload payload) {
      ++slot.segment;
      const SlotVersion made{slot};
      plan.steps.push_back({.kind = Kind::kEnter, .writes = {made}});
      plan.steps.push_back(message(Kind::kSend, segment, peer, payload));
      plan.steps.back().reads = {made};
      plan.steps.push_back({.kind = Kind::kWait, .reads = {made}});
    };
    const auto receive = [&](int segment, int peer, Payload payload) {
      plan.steps.push_back(message(Kind::kReceive, segment, peer, payload));
      ++slot.segment;
      plan.steps.back().writes = {{slot}};
      plan.steps.push_back({.kind = Kind::kDecode, .reads = {{slot}}});
    };
    for (int segment = 0; segment < segments; ++segment) {
      if (rank == kSteps) {
        if (receives_first) receive(segment, rank - 1, Payload::kLatent);
        if (segment >= kFirstSent && segment + kLag < segments) send(segment, 0, Payload::kText);
        if (!receives_first) receive(segment, rank - 1, Payload::kLatent);
        continue;
      }
      if (rank > 0) receive(segment, rank - 1, Payload::kLatent);
      if (rank > 0) receive(segment, rank - 1, Payload::kText);
      if (rank == 0 && segment >= kFirstSent + kLag)
        receive(segment - kLag, kSteps, Payload::kText);
      send(segment, rank + 1, Payload::kLatent);
      if (rank + 1 < kSteps) send(segment, rank + 1, Payload::kText);
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

TEST(StreamPlan, ThePublishedOrderDeadlocks) {
  const std::optional<std::string> fault = check_plans(published_order(16, false));
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->find("deadlock"), std::string::npos) << *fault;
  EXPECT_FALSE(check_plans(published_order(12, false)));  // no features are sent
  EXPECT_FALSE(check_plans(published_order(16, true)));
}

TEST(StreamPlan, TheTextOfAPlan) {
  StreamPlanConfig config = stream_of(stream_split(2), 2, 2);
  config.sink_frames = 0;
  config.credits = 1;
  EXPECT_EQ(to_string(plan_stream(config)[1]), R"(rank 1 of 2, 14 steps
 turn 0
  load step 0
  post step 1 tokens [0, 15) peer 0 latent 1024 bytes writes [segment0@1]
 turn 1
  await step 1 tokens [0, 15) peer 0 latent 1024 bytes writes [segment0@1]
  compute step 1 blocks [0, 4) of 4 tokens [0, 15) reads [segment0@1] writes [velocity.0@1/4]
  update step 1 tokens [0, 15) reads [segment0@1 velocity.0@1/4] writes [segment0@2]
  post step 1 segment 1 tokens [0, 15) peer 0 latent 1024 bytes writes [segment1@2]
  word step 1 segment 1 writes [granted0@1]
  send step 1 segment 1 peer 0 control 8 bytes reads [granted0@1]
 turn 2
  decode step 1 tokens [0, 15) reads [segment0@2]
  await step 1 segment 1 tokens [0, 15) peer 0 latent 1024 bytes writes [segment1@2]
  compute step 1 segment 1 blocks [0, 4) of 4 tokens [0, 15) reads [segment1@2] writes [velocity.0@2/4]
  update step 1 segment 1 tokens [0, 15) reads [segment1@2 velocity.0@2/4] writes [segment1@3]
  wait step 2 reads [granted0@1]
 turn 3
  decode step 1 segment 1 tokens [0, 15) reads [segment1@3]
)");
}

}  // namespace
}  // namespace weft::test
