// Rounds of passes through stages: golden text; soundness, windows and bytes for every size.
#include "parallel/schedule/token_plan.h"

#include <gtest/gtest.h>

#include "parallel/schedule/plan_check.h"

namespace weft {
namespace {

// A change of this text is a change of the schedule.
TEST(TokenPlan, GoldenText) {
  const std::vector<Plan> plans = plan_tokens({.blocks = 3,
                                               .stages = 2,
                                               .rounds = 2,
                                               .micros = {{5, 3}},
                                               .hidden_bytes = 8,
                                               .result_bytes = 4});
  EXPECT_EQ(
      to_string(plans[0]),
      "rank 0 of 2, 9 steps\n"
      " turn 0\n"
      "  load step 0\n"
      "  compute step 0 blocks [0, 2) of 3 tokens [0, 5) reads [prompt@0] writes [hidden.0@0/2]\n"
      "  send step 0 tokens [0, 5) peer 1 hidden 40 bytes reads [hidden.0@0/2]\n"
      " turn 1\n"
      "  receive step 0 tokens [0, 3) peer 1 control 12 bytes writes [results.0@1]\n"
      "  wait step 1 reads [hidden.0@0/2]\n"
      "  compute step 1 blocks [0, 2) of 3 tokens [0, 5) reads [results.0@1] writes "
      "[hidden.0@1/2]\n"
      "  send step 1 tokens [0, 5) peer 1 hidden 40 bytes reads [hidden.0@1/2]\n"
      " turn 2\n"
      "  receive step 1 tokens [0, 3) peer 1 control 12 bytes writes [results.0@2]\n"
      "  wait step 2 reads [hidden.0@1/2]\n");
  EXPECT_EQ(to_string(plans[1]),
            "rank 1 of 2, 12 steps\n"
            " turn 0\n"
            "  load step 0\n"
            "  post step 0 tokens [0, 5) peer 0 hidden 40 bytes writes [hidden.0@0/2]\n"
            "  await step 0 tokens [0, 5) peer 0 hidden 40 bytes writes [hidden.0@0/2]\n"
            "  compute step 0 blocks [2, 3) of 3 tokens [0, 5) reads [prompt@0 hidden.0@0/2] "
            "writes [hidden.0@0/3]\n"
            "  update step 0 tokens [0, 3) reads [hidden.0@0/3] writes [results.0@1]\n"
            "  send step 0 tokens [0, 3) peer 0 control 12 bytes reads [results.0@1]\n"
            " turn 1\n"
            "  receive step 1 tokens [0, 5) peer 0 hidden 40 bytes writes [hidden.0@1/2]\n"
            "  compute step 1 blocks [2, 3) of 3 tokens [0, 5) reads [results.0@1 hidden.0@1/2] "
            "writes [hidden.0@1/3]\n"
            "  wait step 1 reads [results.0@1]\n"
            "  update step 1 tokens [0, 3) reads [hidden.0@1/3] writes [results.0@2]\n"
            "  send step 1 tokens [0, 3) peer 0 control 12 bytes reads [results.0@2]\n"
            " turn 2\n"
            "  wait step 2 reads [results.0@2]\n");
}

TEST(TokenPlan, IsSoundForEverySizeWithTheBytesOfTheFormula) {
  for (int stages = 1; stages <= 5; ++stages)
    for (int micros = 1; micros <= 6; ++micros)
      for (int rounds = 1; rounds <= 4; ++rounds) {
        TokenPlanConfig config{
            .blocks = 7, .stages = stages, .rounds = rounds, .hidden_bytes = 64, .result_bytes = 4};
        int64_t rows = 0, results = 0;
        for (int micro = 0; micro < micros; ++micro) {
          config.micros.push_back({7 + micro, 1 + micro});
          rows += 7 + micro;
          results += 1 + micro;
        }
        const std::vector<Plan> plans = plan_tokens(config);
        const PlanRules rules{
            .bytes = [&](const Step& message) { return message_bytes(config, message); }};
        EXPECT_EQ(check_plans(plans, rules), std::nullopt)
            << stages << " stages, " << micros << " micro-batches, " << rounds << " rounds";
        std::vector<Plan> joined = plan_tokens(config, {0, 1});
        for (int turn = 1; turn <= rounds; ++turn) {
          const std::vector<Plan> window = plan_tokens(config, {turn, turn + 1});
          for (int stage = 0; stage < stages; ++stage) append(joined[stage], window[stage]);
        }
        EXPECT_EQ(check_plans(joined, rules), std::nullopt);
        for (const Plan& plan : plans) {
          EXPECT_EQ(to_string(plan), to_string(joined[plan.rank]));
          int64_t sent = 0;
          int computes = 0;
          for (const Step& step : plan.steps) {
            if (step.kind == Step::Kind::kSend) sent += step.bytes;
            computes += step.kind == Step::Kind::kCompute;
          }
          const bool last = plan.rank == stages - 1;
          EXPECT_EQ(sent, rounds * (last ? results * 4 * (stages - 1) : rows * 64));
          EXPECT_EQ(computes, rounds * micros);
        }
      }
}

}  // namespace
}  // namespace weft
