// Tests the plans of a generation: golden texts, soundness under every layout, windows and bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/plan_check.h"
#include "parallel/sequence_map.h"

namespace weft {
namespace {

TEST(SlotId, IsNamedByKindAndPlace) {
  EXPECT_EQ(to_string(kLatentSlot), "latent");
  EXPECT_EQ(to_string(velocity_slot(1)), "velocity.1");
  EXPECT_EQ(to_string(keys_slot(2, 1)), "keys.2.1");
  EXPECT_EQ(to_string(SlotId{SlotKind::kSegment, 3, 1}), "segment3.1");
  EXPECT_EQ(to_string(SlotId{.kind = SlotKind::kGranted, .segment = 12}), "granted12");
  std::set<std::string> names;
  for (int kind = 0; kind < static_cast<int>(SlotKind::kCount); ++kind)
    for (const int block : {-1, 0, 12})
      for (const int part : {0, 1, 12})
        for (const int branch : {0, 1})
          names.insert(to_string(SlotId{static_cast<SlotKind>(kind), block, part, branch}));
  EXPECT_EQ(std::ssize(names), static_cast<int>(SlotKind::kCount) * 3 * 3 * 2);
}

Plan serial(const DenoisePlanConfig& config) { return plan_denoise(config)[0]; }

PlanRules rules_of(const DenoisePlanConfig& config) {
  return {.bytes = [config](const Step& message) { return message_bytes(config, message); }};
}

// Two experts, guidance on the first alone. A change of this text is a change of the schedule.
TEST(PlanSerial, GoldenText) {
  const Plan plan = serial({.steps = {{0, 2}, {0, 2}, {1, 1}}, .blocks = {30, 40}});
  EXPECT_EQ(
      to_string(plan),
      "rank 0 of 1, 11 steps\n"
      " turn 0\n"
      "  load step 0\n"
      "  compute step 0 blocks [0, 30) of 30 reads [latent@0] writes [velocity.0@0/30]\n"
      "  compute step 0 branch 1 blocks [0, 30) of 30 reads [latent@0] writes [velocity.1@0/30]\n"
      "  update step 0 reads [latent@0 velocity.0@0/30 velocity.1@0/30] writes [latent@1]\n"
      " turn 1\n"
      "  compute step 1 blocks [0, 30) of 30 reads [latent@1] writes [velocity.0@1/30]\n"
      "  compute step 1 branch 1 blocks [0, 30) of 30 reads [latent@1] writes [velocity.1@1/30]\n"
      "  update step 1 reads [latent@1 velocity.0@1/30 velocity.1@1/30] writes [latent@2]\n"
      " turn 2\n"
      "  load step 2 model 1\n"
      "  compute step 2 model 1 blocks [0, 40) of 40 reads [latent@2] writes [velocity.0@2/40]\n"
      "  update step 2 model 1 reads [latent@2 velocity.0@2/40] writes [latent@3]\n"
      " turn 3\n"
      "  decode step 2 reads [latent@3] writes [frames@3]\n");
}

TEST(PlanSerial, IsSoundForEveryMix) {
  for (int steps = 0; steps <= 5; ++steps)
    for (int first = 0; first <= steps; ++first)
      for (int branches = 1; branches <= 2; ++branches) {
        DenoisePlanConfig config;
        config.blocks = {2, 3};
        for (int i = 0; i < steps; ++i) config.steps.push_back({i < first ? 0 : 1, branches});
        const Plan plan = serial(config);
        EXPECT_EQ(check_plans({&plan, 1}), std::nullopt);
        int computes = 0, loads = 0;
        for (const Step& step : plan.steps) {
          computes += step.kind == Step::Kind::kCompute;
          loads += step.kind == Step::Kind::kLoad;
        }
        EXPECT_EQ(computes, steps * branches);
        EXPECT_EQ(loads, (first > 0) + (first < steps));  // each expert at most once
      }
}

DenoisePlanConfig planned_job(const Layout& layout,
                              std::vector<DenoisePlanConfig::DenoiseStep> steps) {
  DenoisePlanConfig config;
  config.steps = std::move(steps);
  config.blocks = {7, 5};
  config.layout = layout;
  for (int i = 0; i < layout.sequence(); ++i) config.tokens.push_back(10 + i);
  config.hidden_bytes = 96;
  config.latent_bytes = 256;
  return config;
}

// The last of four ranks: two branches on two ranks each, which are stages.
constexpr const char* kLastOfFour = R"(rank 3 of 4, 22 steps
 turn 0
  load step 0
  post step 0 branch 1 tokens [0, 10) peer 2 hidden 960 bytes writes [hidden.1@0/4]
  post step 0 tokens [0, 10) peer 1 velocity 2560 bytes writes [velocity.0@0/7]
  await step 0 branch 1 tokens [0, 10) peer 2 hidden 960 bytes writes [hidden.1@0/4]
  compute step 0 branch 1 blocks [4, 7) of 7 tokens [0, 10) reads [hidden.1@0/4] writes [velocity.1@0/7]
  send step 0 branch 1 tokens [0, 10) peer 1 velocity 2560 bytes reads [velocity.1@0/7]
  await step 0 tokens [0, 10) peer 1 velocity 2560 bytes writes [velocity.0@0/7]
  update step 0 tokens [0, 10) reads [latent@0 velocity.0@0/7 velocity.1@0/7] writes [latent@1]
  send step 0 tokens [0, 10) peer 2 latent 2560 bytes reads [latent@1]
 turn 1
  post step 1 branch 1 tokens [0, 10) peer 2 hidden 960 bytes writes [hidden.1@1/4]
  post step 1 tokens [0, 10) peer 1 velocity 2560 bytes writes [velocity.0@1/7]
  await step 1 branch 1 tokens [0, 10) peer 2 hidden 960 bytes writes [hidden.1@1/4]
  wait step 1 branch 1 reads [velocity.1@0/7]
  compute step 1 branch 1 blocks [4, 7) of 7 tokens [0, 10) reads [hidden.1@1/4] writes [velocity.1@1/7]
  send step 1 branch 1 tokens [0, 10) peer 1 velocity 2560 bytes reads [velocity.1@1/7]
  await step 1 tokens [0, 10) peer 1 velocity 2560 bytes writes [velocity.0@1/7]
  wait step 1 reads [latent@1]
  update step 1 tokens [0, 10) reads [latent@1 velocity.0@1/7 velocity.1@1/7] writes [latent@2]
 turn 2
  send step 1 tokens [0, 10) peer 2 latent 2560 bytes reads [latent@2]
  wait step 1 reads [velocity.1@1/7]
  wait step 1 reads [latent@2]
  decode step 1 tokens [0, 10) reads [latent@2] writes [frames@2]
)";

TEST(PlanDenoise, GoldenText) {
  Layout layout;
  layout[Axis::kCfg] = 2;
  layout[Axis::kLayers] = 2;
  const std::vector<Plan> plans = plan_denoise(planned_job(layout, {{0, 2}, {0, 2}}));
  EXPECT_EQ(to_string(plans[3]), kLastOfFour);
}

// A step of the cache has no hidden rows and no latent that would be the first stage's.
TEST(PlanDenoise, SkippedStepsSendVelocitiesAloneAndAuditedOnesRunOneBranch) {
  using Turns = std::array<int, 5>;
  const LayoutLimits limits{.heads = 6, .layers = 5, .tokens = 100, .ffn = 64};
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      DenoisePlanConfig config = planned_job(layout, {{0, 2}, {0, 2}, {0, 2}, {0, 2}, {0, 2}});
      config.steps[1].skipped = config.steps[2].skipped = config.steps[2].audited = true;
      const std::vector<Plan> plans = plan_denoise(config);
      EXPECT_EQ(check_plans(plans, rules_of(config)), std::nullopt) << to_string(layout);
      const Mesh mesh(layout);
      const int stages = layout[Axis::kLayers];
      for (const Plan& plan : plans) {
        const int stage = mesh.at(Axis::kLayers, plan.rank),
                  branch = mesh.at(Axis::kCfg, plan.rank);
        const bool last = stage == stages - 1, two = layout[Axis::kCfg] == 2;
        Turns hidden{}, latents{}, reused{}, computed{};
        for (const Step& step : plan.steps) {
          if (step.turn >= 5) continue;
          if (step.kind == Step::Kind::kSend) {
            hidden[step.turn] += step.payload == Payload::kHidden;
            latents[step.turn] += step.payload == Payload::kLatent;
          }
          if (step.kind == Step::Kind::kCompute) ++(step.reuses ? reused : computed)[step.turn];
        }
        const int whole = two ? 1 : 2, audited = two && branch ? 0 : 1;
        const Turns runs{whole, 0, audited, whole, whole}, skips{0, whole, whole - audited, 0, 0};
        EXPECT_EQ(computed, runs) << to_string(layout) << " rank " << plan.rank;
        EXPECT_EQ(reused, last ? skips : Turns{}) << to_string(layout) << " rank " << plan.rank;
        EXPECT_EQ(hidden, last ? Turns{} : runs) << to_string(layout);
        // The latent of a step goes back at the end of the one before.
        Turns back{};
        for (int step = 1; step < 5 && last && stages > 1; ++step) back[step - 1] = runs[step] > 0;
        EXPECT_EQ(latents, back) << to_string(layout) << " rank " << plan.rank;
      }
    }
}

// The first block of a step runs in the turn before, on the first stage, and the last one gets its
// rows; whether the others run is not known then. Turn by turn, plans are those of the whole run.
TEST(PlanDenoise, FirstBlocksRunAheadUnderEveryLayout) {
  const LayoutLimits limits{.heads = 6, .layers = 5, .tokens = 100, .ffn = 64};
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      DenoisePlanConfig config =
          planned_job(layout, {{0, 2}, {0, 2}, {0, 2}, {1, 2}, {1, 2}, {1, 1}});
      config.first_block_bytes = 24;
      config.steps[1].skipped = config.steps[4].skipped = config.steps[4].audited = true;
      const std::vector<Plan> plans = plan_denoise(config);
      EXPECT_EQ(check_plans(plans, rules_of(config)), std::nullopt) << to_string(layout);
      const Mesh mesh(layout);
      const bool staged = layout[Axis::kLayers] > 1, two = layout[Axis::kCfg] == 2;
      for (const Plan& plan : plans) {
        const int stage = mesh.at(Axis::kLayers, plan.rank);
        const bool negative = mesh.at(Axis::kCfg, plan.rank) == 1;
        std::array<int, 6> first{}, sent{};
        std::vector<Step> joined;
        for (int64_t turn = 0; turn < 7; ++turn) {
          const std::vector<Plan> window = plan_denoise(config, {turn, turn + 1});
          for (const Step& step : window[plan.rank].steps) joined.push_back(step);
        }
        EXPECT_EQ(joined.size(), plan.steps.size()) << to_string(layout) << " rank " << plan.rank;
        for (const Step& step : plan.steps) {
          const bool one = step.kind == Step::Kind::kCompute && step.blocks.end == 1;
          if (one && step.blocks.begin == 0) {
            ++first[step.pass.step];
            const bool ahead = step.pass.step == 1 || step.pass.step == 2 || step.pass.step == 4;
            EXPECT_EQ(step.turn, step.pass.step - ahead) << to_string(layout);
          }
          if (step.kind == Step::Kind::kSend && step.payload == Payload::kFirstBlock) {
            ++sent[step.pass.step];
            EXPECT_EQ(step.bytes, 24 * step.tokens.size());
          }
        }
        const int each = two ? 1 : 2, last = two && negative ? 0 : 1;
        const std::array<int, 6> all{each, each, each, each, each, last}, none{};
        EXPECT_EQ(first, stage == 0 ? all : none) << to_string(layout) << " rank " << plan.rank;
        EXPECT_EQ(sent, stage == 0 && staged ? all : none) << to_string(layout);
      }
    }
}

TEST(PlanDenoise, IsSoundUnderEveryLayoutAndHasTheBytesOfItsFormula) {
  const LayoutLimits limits{.heads = 6, .layers = 5, .tokens = 100, .ffn = 64};
  int checked = 0;
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      // Guidance on the first expert alone: an idle branch still updates.
      const int steps = 3, guided = 2;
      DenoisePlanConfig config = planned_job(layout, {{0, 2}, {0, 2}, {1, 1}});
      config.joint_rows = {3, 4};
      for (int index = 0; index < layout.sequence(); ++index)
        config.beside.push_back(5 - index % 3);
      const std::vector<Plan> plans = plan_denoise(config);
      EXPECT_EQ(check_plans(plans, rules_of(config)), std::nullopt) << to_string(layout);
      ++checked;
      const Mesh mesh(layout);
      const int stages = layout[Axis::kLayers], sequence = layout.sequence();
      for (const Plan& plan : plans) {
        const int stage = mesh.at(Axis::kLayers, plan.rank),
                  branch = mesh.at(Axis::kCfg, plan.rank);
        const bool last = stage == stages - 1, two = layout[Axis::kCfg] == 2;
        const int64_t n = config.tokens[mesh.sequence_index(plan.rank)];
        const int64_t hidden = n + config.beside[mesh.sequence_index(plan.rank)];
        const int positive = two && branch ? 0 : steps, negative = two && !branch ? 0 : guided;
        int64_t bytes =
            last ? 0 : (positive * (hidden + 3) + negative * (hidden + 4)) * config.hidden_bytes;
        if (last && two) bytes += (positive + negative) * n * config.latent_bytes;
        if (last && stages > 1)
          bytes += (std::max(positive, negative) - 1) * n * config.latent_bytes;
        if (last) bytes += (stages * sequence - 1) * n * config.latent_bytes;
        int64_t sent = 0;
        for (const Step& step : plan.steps)
          if (step.kind == Step::Kind::kSend) sent += step.bytes;
        EXPECT_EQ(sent, bytes) << to_string(layout) << " rank " << plan.rank;
      }
    }
  EXPECT_GE(checked, 60);
}

// The final latent of clips goes to the ranks that decode, frame by frame; the plans are sound with
// rendezvous sends, and a rank sends what the header says.
TEST(PlanDenoise, FramesOfClipsGoToTheDecodersInOrder) {
  constexpr int64_t kFrames = 7, kSize = 5;
  const LayoutLimits limits{.heads = 6,
                            .layers = 5,
                            .tokens = kFrames * kSize,
                            .ffn = 64,
                            .method = {SplitRule::kClips, kFrames}};
  int checked = 0;
  for (int ranks = 2; ranks <= 6; ++ranks)
    for (Layout layout : legal_layouts(ranks, limits))
      for (const int decoders : {0, 1, 2, -1}) {  // all, the first, the first two, the last
        if (layout[Axis::kClip] == 1 || layout[Axis::kData] > 1) continue;
        layout.vae_ranks = std::max(decoders, 0);
        layout.decode_rank = decoders < 0 ? ranks - 1 : -1;
        const int clips = layout[Axis::kClip], shares = layout.sequence() / clips;
        DenoisePlanConfig config = planned_job(layout, {{0, 2}, {1, 1}});
        config.frames = kFrames;
        const SequenceMap map = SequenceMap::clips({kFrames * kSize, kFrames}, clips, shares);
        for (int index = 0; index < map.size(); ++index) config.tokens[index] = map.rows(index);
        const std::vector<Plan> plans = plan_denoise(config);
        ASSERT_EQ(check_plans(plans, rules_of(config)), std::nullopt) << to_string(layout);
        ++checked;
        const Mesh mesh(layout);
        for (const Plan& plan : plans) {
          const int rank = plan.rank, stages = layout[Axis::kLayers];
          const std::vector<int> group = mesh.along(sequence_axes({Axis::kLayers}), rank);
          const int64_t others = std::ranges::count_if(
              group, [&](int to) { return to != rank && receives_frames(layout, to); });
          const bool last = mesh.at(Axis::kLayers, rank) == stages - 1;
          int64_t bytes = 0, ahead = 0, most_ahead = 0, next = 0;
          for (const Step& step : plan.steps) {
            if (step.turn < static_cast<int>(config.steps.size())) continue;
            if (step.kind == Step::Kind::kSend) bytes += step.bytes;
            if (step.kind == Step::Kind::kPost) ahead += step.tokens.size();
            most_ahead = std::max(most_ahead, ahead);
            if (step.kind != Step::Kind::kDecode) continue;
            EXPECT_EQ(step.tokens, (Range{next * kSize, (next + 1) * kSize}));
            ++next;
            for (const SlotVersion& read : step.reads)
              if (read.slot.kind == SlotKind::kFramePart)
                ahead -= std::min<int64_t>(ahead, kSize);  // at most a frame of parts
          }
          EXPECT_EQ(next, kFrames);
          EXPECT_LE(most_ahead, 2 * kSize) << to_string(layout) << " rank " << rank;
          EXPECT_EQ(bytes, last ? others * map.rows(mesh.sequence_index(rank)) * 256 : 0)
              << to_string(layout) << " rank " << rank;
        }
      }
  EXPECT_GE(checked, 40);
}

// Windows of every length from every turn on, joined, are the plan of all turns.
TEST(PlanDenoise, WindowsJoinToThePlan) {
  for (const Layout& layout :
       legal_layouts(4, {.heads = 4, .layers = 4, .tokens = 64, .ffn = 64})) {
    // The second branch ends while its last sends are pending.
    DenoisePlanConfig config =
        planned_job(layout, {{0, 1}, {0, 2}, {0, 2}, {1, 1}, {1, 1}, {1, 2}});
    config.first_step = 1;
    const std::vector<Plan> whole = plan_denoise(config);
    const Range turns = denoise_turns(config);
    for (int64_t length = 1; length <= turns.size(); ++length) {
      std::vector<Plan> joined;
      for (int64_t begin = turns.begin; begin < turns.end; begin += length) {
        const auto window = plan_denoise(config, {begin, std::min(begin + length, turns.end)});
        if (joined.empty())
          joined = window;
        else
          for (size_t rank = 0; rank < joined.size(); ++rank) append(joined[rank], window[rank]);
      }
      EXPECT_EQ(check_plans(joined, rules_of(config)), std::nullopt) << to_string(layout);
      for (size_t rank = 0; rank < joined.size(); ++rank)
        EXPECT_EQ(to_string(joined[rank]), to_string(whole[rank]))
            << to_string(layout) << " windows of " << length;
    }
  }
}

TEST(SummarizeTurns, JoinsTurnsThatAreAlike) {
  Layout layout;
  layout[Axis::kLayers] = 2;
  DenoisePlanConfig config = planned_job(layout, {{0, 2}, {0, 2}, {0, 2}, {1, 1}});
  const std::vector<TurnSummary> turns = summarize_turns(plan_denoise(config));
  ASSERT_EQ(turns.size(), 4u);  // the first loads, then two alike, then the second expert, then all
  const auto is = [&](size_t i, const Range& range, std::array<int, 5> counts, int64_t bytes) {
    const TurnSummary& turn = turns[i];
    EXPECT_EQ(turn.turns, range);
    EXPECT_EQ((std::array{turn.loads, turn.forwards, turn.updates, turn.decodes, turn.messages}),
              counts);
    EXPECT_EQ(turn.bytes, bytes);
  };
  is(0, {0, 1}, {2, 4, 1, 0, 3}, 2 * 960 + 2560);
  is(1, {1, 3}, {0, 4, 1, 0, 3}, 2 * 960 + 2560);
  is(2, {3, 4}, {2, 2, 1, 0, 1}, 960);
  is(3, {4, 5}, {0, 0, 0, 2, 1}, 2560);
}

TEST(StageBlocks, CoverEveryBlockOnceAndBalance) {
  for (int stages = 1; stages <= 9; ++stages)
    for (int blocks = stages; blocks <= 40; ++blocks) {
      int next = 0, least = blocks, most = 0;
      for (int stage = 0; stage < stages; ++stage) {
        const BlockRange range = stage_blocks(blocks, stages, stage);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.total, blocks);
        next = range.end;
        least = std::min(least, range.end - range.begin);
        most = std::max(most, range.end - range.begin);
      }
      EXPECT_EQ(next, blocks);
      EXPECT_LE(most - least, 1);
    }
  // The longer stages are those without embedding and head.
  EXPECT_EQ(stage_blocks(30, 4, 0).end, 7);
  EXPECT_EQ(stage_blocks(30, 4, 1).end, 15);
  EXPECT_EQ(stage_blocks(30, 4, 2).end, 23);
}

}  // namespace
}  // namespace weft
