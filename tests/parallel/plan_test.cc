// Tests the plans of a generation: golden texts, soundness under every layout, bytes, and the
// faults that the checker finds.
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/schedule/denoise_plan.h"

namespace weft {
namespace {

Plan serial(const DenoisePlanConfig& config) { return plan_denoise(config)[0]; }

// Two experts, guidance on the first alone. A change of this text is a change of the schedule.
TEST(PlanSerial, GoldenText) {
  const Plan plan = serial({.steps = {{0, 2}, {0, 2}, {1, 1}}, .blocks = {30, 40}});
  EXPECT_EQ(to_string(plan),
            "rank 0 of 1, 11 steps\n"
            "  load step 0\n"
            "  compute step 0 blocks [0, 30) of 30 reads [0] writes [1]\n"
            "  compute step 0 branch 1 blocks [0, 30) of 30 reads [0] writes [2]\n"
            "  update step 0 reads [0 1 2] writes [0]\n"
            "  compute step 1 blocks [0, 30) of 30 reads [0] writes [1]\n"
            "  compute step 1 branch 1 blocks [0, 30) of 30 reads [0] writes [2]\n"
            "  update step 1 reads [0 1 2] writes [0]\n"
            "  load step 2 model 1\n"
            "  compute step 2 model 1 blocks [0, 40) of 40 reads [0] writes [1]\n"
            "  update step 2 model 1 reads [0 1] writes [0]\n"
            "  decode step 2 reads [0] writes [3]\n");
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

Plan sound() { return serial({.steps = {{0, 2}}, .blocks = {2}}); }

std::string fault(const Plan& plan) { return check_plans({&plan, 1}).value_or(""); }

TEST(CheckPlans, FindsAReadBeforeItsWrite) {
  Plan plan = sound();
  plan.steps.erase(plan.steps.begin() + 2);  // the second branch
  EXPECT_NE(fault(plan).find("reads slot 2 unwritten"), std::string::npos) << fault(plan);
}

TEST(CheckPlans, FindsAComputeBeforeItsLoad) {
  Plan plan = sound();
  plan.steps.erase(plan.steps.begin());
  EXPECT_NE(fault(plan).find("before its expert is loaded"), std::string::npos) << fault(plan);
}

TEST(CheckPlans, FindsAnIllegalBlockRange) {
  Plan plan = sound();
  plan.steps[1].blocks.end = 3;
  EXPECT_NE(fault(plan).find("block range"), std::string::npos) << fault(plan);
}

DenoisePlanConfig job(const Layout& layout, std::vector<DenoisePlanConfig::DenoiseStep> steps) {
  DenoisePlanConfig config;
  config.steps = std::move(steps);
  config.blocks = {7, 5};
  config.layout = layout;
  for (int i = 0; i < layout.sequence(); ++i) config.tokens.push_back(10 + i);
  config.hidden_bytes = 96;
  config.latent_bytes = 256;
  return config;
}

// Two branches on two ranks, each in two stages: the peers of every message.
TEST(PlanDenoise, GoldenText) {
  Layout layout;
  layout[Axis::kCfg] = 2;
  layout[Axis::kLayers] = 2;
  const std::vector<Plan> plans = plan_denoise(job(layout, {{0, 2}, {0, 2}}));
  EXPECT_EQ(to_string(plans[3]),
            "rank 3 of 4, 18 steps\n"
            "  load step 0\n"
            "  receive step 0 branch 1 peer 2 hidden 960 bytes writes [5]\n"
            "  compute step 0 branch 1 blocks [4, 7) of 7 reads [5] writes [2]\n"
            "  send step 0 branch 1 peer 1 velocity 2560 bytes reads [2]\n"
            "  receive step 0 peer 1 velocity 2560 bytes writes [1]\n"
            "  wait step 0 reads [2]\n"
            "  update step 0 reads [0 1 2] writes [0]\n"
            "  send step 0 peer 2 latent 2560 bytes reads [0]\n"
            "  receive step 1 branch 1 peer 2 hidden 960 bytes writes [5]\n"
            "  compute step 1 branch 1 blocks [4, 7) of 7 reads [5] writes [2]\n"
            "  send step 1 branch 1 peer 1 velocity 2560 bytes reads [2]\n"
            "  receive step 1 peer 1 velocity 2560 bytes writes [1]\n"
            "  wait step 1 reads [2]\n"
            "  wait step 1 reads [0]\n"
            "  update step 1 reads [0 1 2] writes [0]\n"
            "  send step 1 peer 2 latent 2560 bytes reads [0]\n"
            "  wait step 1 reads [0]\n"
            "  decode step 1 reads [0] writes [3]\n");
}

TEST(PlanDenoise, IsSoundUnderEveryLayoutAndHasTheBytesOfItsFormula) {
  const LayoutLimits limits{.heads = 6, .layers = 5, .tokens = 100, .ffn = 64};
  int checked = 0;
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      // Guidance on the first expert alone: an idle branch still updates.
      const int steps = 3, guided = 2;
      const DenoisePlanConfig config = job(layout, {{0, 2}, {0, 2}, {1, 1}});
      const std::vector<Plan> plans = plan_denoise(config);
      EXPECT_EQ(check_plans(plans), std::nullopt) << to_string(layout);
      ++checked;
      const Mesh mesh(layout);
      const int stages = layout[Axis::kLayers], sequence = layout.sequence();
      for (const Plan& plan : plans) {
        const int stage = mesh.at(Axis::kLayers, plan.rank),
                  branch = mesh.at(Axis::kCfg, plan.rank);
        const bool last = stage == stages - 1, two = layout[Axis::kCfg] == 2;
        const int64_t n = config.tokens[mesh.sequence_index(plan.rank)];
        const int forwards = two ? (branch ? guided : steps) : steps + guided;
        int64_t bytes = last ? 0 : forwards * n * config.hidden_bytes;
        if (last && two) bytes += forwards * n * config.latent_bytes;
        if (last && stages > 1) bytes += (steps - 1) * n * config.latent_bytes;
        if (last) bytes += (stages * sequence - 1) * n * config.latent_bytes;
        int64_t sent = 0;
        for (const Step& step : plan.steps)
          if (step.kind == Step::Kind::kSend) sent += step.bytes;
        EXPECT_EQ(sent, bytes) << to_string(layout) << " rank " << plan.rank;
      }
    }
  EXPECT_GE(checked, 60);
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

Step message(Step::Kind kind, int peer, int64_t bytes) {
  return {.kind = kind, .pass = {}, .peer = peer, .payload = Payload::kHidden, .bytes = bytes};
}

TEST(CheckPlans, MatchesSendsAndReceives) {
  const auto check = [](std::vector<Step> first, std::vector<Step> second) {
    const Plan plans[] = {{.rank = 0, .ranks = 2, .steps = std::move(first)},
                          {.rank = 1, .ranks = 2, .steps = std::move(second)}};
    return check_plans(plans).value_or("");
  };
  const Step send = message(Step::Kind::kSend, 1, 64),
             receive = message(Step::Kind::kReceive, 0, 64);
  EXPECT_EQ(check({send}, {receive}), "");
  EXPECT_NE(check({send}, {}).find("never received"), std::string::npos);
  EXPECT_NE(check({}, {receive}).find("nothing is sent"), std::string::npos);
  EXPECT_NE(check({message(Step::Kind::kSend, 1, 32)}, {receive}).find("32 bytes"),
            std::string::npos);
  EXPECT_NE(check({message(Step::Kind::kSend, 2, 64)}, {}).find("no such peer"), std::string::npos);
}

TEST(CheckPlans, FindsADeadlockOfRendezvousSends) {
  Step send = message(Step::Kind::kSend, 1, 64), receive = message(Step::Kind::kReceive, 1, 64);
  send.reads = {0};
  Step wait{.kind = Step::Kind::kWait, .pass = {}, .reads = {0}};
  const auto both = [&](bool wait_first) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 2; ++rank) {
      send.peer = receive.peer = 1 - rank;
      Plan plan{.rank = rank, .ranks = 2, .steps = {send, receive, wait}};
      if (wait_first) std::swap(plan.steps[1], plan.steps[2]);
      plans.push_back(plan);
    }
    return check_plans(plans).value_or("");
  };
  EXPECT_EQ(both(false), "");
  EXPECT_NE(both(true).find("deadlock: rank 0 stands at wait"), std::string::npos) << both(true);
}

TEST(CheckPlans, FindsAWriteUnderASend) {
  Layout layout;
  layout[Axis::kLayers] = 2;
  std::vector<Plan> plans = plan_denoise(job(layout, {{0, 2}, {0, 2}}));
  auto& steps = plans[0].steps;
  steps.erase(std::find_if(steps.begin(), steps.end(),
                           [](const Step& step) { return step.kind == Step::Kind::kWait; }));
  EXPECT_NE(check_plans(plans).value_or("").find("while a send may still read it"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
