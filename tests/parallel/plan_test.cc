#include "parallel/plan.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

// Two experts, guidance on the first alone. A change of this text is a change of the schedule.
TEST(PlanSerial, GoldenText) {
  const Plan plan = plan_serial({.steps = {{0, 2}, {0, 2}, {1, 1}}, .blocks = {30, 40}});
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
        SerialPlanConfig config{.steps = {}, .blocks = {2, 3}};
        for (int i = 0; i < steps; ++i) config.steps.push_back({i < first ? 0 : 1, branches});
        const Plan plan = plan_serial(config);
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

Plan sound() { return plan_serial({.steps = {{0, 2}}, .blocks = {2}}); }

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

TEST(CheckPlans, FindsAComputeAfterARelease) {
  Plan plan = sound();
  plan.steps.insert(plan.steps.begin() + 2, {.kind = Step::Kind::kRelease, .pass = {}});
  EXPECT_NE(fault(plan).find("before its expert is loaded"), std::string::npos) << fault(plan);
}

TEST(CheckPlans, FindsAnIllegalBlockRange) {
  Plan plan = sound();
  plan.steps[1].blocks.end = 3;
  EXPECT_NE(fault(plan).find("block range"), std::string::npos) << fault(plan);
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

}  // namespace
}  // namespace weft
