// The plans of displaced steps: sound for every number of patches and stages, with the bytes and
// the time of their formulas; planted faults are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/plan_check.h"
#include "parallel/schedule/plan_timing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Kind = Step::Kind;

struct Split {
  int cfg = 1, stages = 1, sequence = 1;
};

// `steps` of which the first `warmup` are exact.
DenoisePlanConfig patch_job(const Split& split, std::vector<int64_t> patches, int steps, int warmup,
                            int branches = 2) {
  DenoisePlanConfig config;
  config.steps.assign(steps, {.model = 0, .branches = branches});
  config.blocks = {8, 9};
  config.layout[Axis::kCfg] = split.cfg;
  config.layout[Axis::kLayers] = split.stages;
  config.layout[Axis::kUlysses] = split.sequence;
  config.patches = std::move(patches);
  config.tokens.resize(split.sequence);
  for (int index = 0; index < split.sequence; ++index)
    for (const int64_t patch : config.patches)
      config.tokens[index] += partition(patch, split.sequence, index).size();
  config.hidden_bytes = 96;
  config.latent_bytes = 256;
  displace_steps(config.steps, warmup);
  return config;
}

std::vector<int64_t> equal(int patches, int64_t tokens = 4) {
  return std::vector<int64_t>(patches, tokens);
}

// The end of the cycle M != N is in the grid; so are two stages that send both ways.
TEST(PipeFusionPlan, IsSoundForEveryNumberOfPatchesAndStages) {
  for (int patches = 1; patches <= 6; ++patches)
    for (int stages = 1; stages <= 5; ++stages)
      for (const auto& [cfg, branches] :
           std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 2}, {2, 1}})
        for (int warmup = 0; warmup <= 6; ++warmup)
          for (const int sequence : {1, 2}) {
            const DenoisePlanConfig config =
                patch_job({cfg, stages, sequence}, equal(patches), 5, warmup, branches);
            EXPECT_EQ(check_plans(plan_denoise(config), denoise_rules(config)), std::nullopt)
                << patches << " patches, " << stages << " stages, cfg " << cfg << " of " << branches
                << ", warmup " << warmup;
          }
}

TEST(PipeFusionPlan, IsSoundWithTwoExpertsAndStepsThatAreExactAgain) {
  for (int stages = 1; stages <= 3; ++stages)
    for (const int cfg : {1, 2})
      for (const int second : {1, 2}) {  // branches of the second expert
        DenoisePlanConfig config = patch_job({cfg, stages}, {4, 3, 5}, 9, 1);
        for (int step = 4; step < 9; ++step) config.steps[step] = {.model = 1, .branches = second};
        displace_steps(config.steps, 1);
        EXPECT_FALSE(config.steps[4].displaced);
        EXPECT_TRUE(config.steps[5].displaced);
        config.steps[7].displaced = false;
        const std::vector<Plan> plans = plan_denoise(config);
        EXPECT_EQ(check_plans(plans, denoise_rules(config)), std::nullopt) << stages << cfg;
        // Windows make the plan.
        std::vector<Plan> joined = plan_denoise(config, {0, 1});
        for (int turn = 1; turn < 10; ++turn) {
          const std::vector<Plan> next = plan_denoise(config, {turn, turn + 1});
          for (size_t rank = 0; rank < joined.size(); ++rank) append(joined[rank], next[rank]);
        }
        for (size_t rank = 0; rank < joined.size(); ++rank)
          EXPECT_EQ(to_string(joined[rank]), to_string(plans[rank]));
      }
}

// Without patches the plan is what it is without the method.
TEST(PipeFusionPlan, WithWarmupOverAllStepsIsThePlanOfTheLayout) {
  DenoisePlanConfig config = patch_job({2, 3}, {4, 3, 5}, 4, 4);
  const std::vector<Plan> exact = plan_denoise(config);
  config.patches.clear();
  const std::vector<Plan> plain = plan_denoise(config);
  for (size_t rank = 0; rank < exact.size(); ++rank)
    EXPECT_EQ(to_string(exact[rank]), to_string(plain[rank]));
}

// Law L-PF4, as data: pass (k, m) reads the keys of step k of the patches before and those of step
// k - 1 of the patches after it.
TEST(PipeFusionPlan, APatchReadsTheKeysOfItsDefinition) {
  const DenoisePlanConfig config = patch_job({1, 2}, {4, 3, 5}, 4, 1);
  int passes = 0;
  for (const Plan& plan : plan_denoise(config))
    for (const Step& step : plan.steps) {
      if (step.kind != Kind::kCompute || step.pass.micro == 0) continue;
      ++passes;
      std::vector<SlotVersion> expected;
      for (int patch = 1; patch <= 3; ++patch)
        if (patch != step.pass.micro)
          expected.push_back({keys_slot(patch, step.pass.branch),
                              step.turn - (patch > step.pass.micro), step.blocks.end});
      EXPECT_EQ(std::vector(step.reads.begin() + 1, step.reads.end()), expected) << to_string(step);
    }
  EXPECT_EQ(passes, 2 * 3 * 3 * 2);
}

// Law L-PF7 with the text of every patch: a displaced step carries X + M text rows over an edge per
// branch, and the latent back once, for any number of blocks.
TEST(PipeFusionPlan, BytesPerStepAndEdgeAreOneHiddenStateAndTheTextOfEachPatch) {
  const std::vector<int64_t> patches{4, 3, 5, 6};
  const int64_t tokens = 18;
  for (int stages = 2; stages <= 4; ++stages) {
    DenoisePlanConfig config = patch_job({1, stages}, patches, 5, 1);
    config.joint_rows = {3, 2};
    const std::vector<Plan> plans = plan_denoise(config);
    for (const Plan& plan : plans)
      for (int turn = 1; turn < 5; ++turn) {
        std::map<Payload, int64_t> sent;
        for (const Step& step : plan.steps)
          if (step.kind == Kind::kSend && step.turn == turn) sent[step.payload] += step.bytes;
        const bool last = plan.rank == stages - 1;
        EXPECT_EQ(sent[Payload::kHidden], last ? 0 : (2 * tokens + 4 * (3 + 2)) * 96);
        EXPECT_EQ(sent[Payload::kLatent], last && turn + 1 < 5 ? tokens * 256 : 0);
      }
  }
}

// Law L-PF8: a step takes max(M T_c, N (T_c + t_c)).
TEST(PipeFusionPlan, TheTimeOfAStepIsTheLaw) {
  const double compute = 1;
  for (int stages = 2; stages <= 8; ++stages)
    for (int patches = 1; patches <= 2 * stages; ++patches)
      for (const double message : {0.0, 0.3, 1.0}) {
        const int steps = 13;
        DenoisePlanConfig config = patch_job({1, stages}, equal(patches), steps, 1, 1);
        config.hidden_bytes = config.latent_bytes = 1;  // 4 bytes a patch
        const Link link{.latency_s = 0, .bytes_per_s = message > 0 ? 4 / message : 0};
        const std::vector<Plan> plans = plan_denoise(config);
        const auto times = time_plans(plans, {}, link, [&](const Step& step, int) {
          return step.kind == Kind::kCompute ? compute : 0.0;
        });
        const auto begun = [&](int turn) {
          for (size_t i = 0; i < plans[0].steps.size(); ++i)
            if (plans[0].steps[i].turn == turn && plans[0].steps[i].kind == Kind::kCompute)
              return times[0][i].begin_s;
          return -1.0;
        };
        const double period = (begun(11) - begun(5)) / 6,
                     law = std::max(patches * compute, stages * (compute + message));
        EXPECT_NEAR(period, law, 0.011 * law)
            << patches << " patches, " << stages << " stages, message " << message;
      }
}

// A receive that is posted into the buffer which is still in use or being sent, and the other
// faults of schedules like this one.
TEST(PipeFusionPlan, PlantedFaultsAreFound) {
  const DenoisePlanConfig config = patch_job({1, 3}, {4, 3, 5}, 4, 1, 1);
  const PlanRules rules = denoise_rules(config);
  const std::vector<Plan> sound = plan_denoise(config);
  ASSERT_EQ(check_plans(sound, rules), std::nullopt);
  const auto fault = [&](int rank, const std::function<void(std::vector<Step>&)>& plant) {
    std::vector<Plan> plans = sound;
    plant(plans[rank].steps);
    return check_plans(plans, rules).value_or("");
  };
  // One receive buffer in place of two: the next patch overwrites the present one.
  EXPECT_TRUE(contains(fault(2,
                             [&](std::vector<Step>& steps) {
                               for (Step& step : steps)
                                 for (auto* versions : {&step.reads, &step.writes})
                                   for (SlotVersion& version : *versions)
                                     if (version.slot == buffer_slot(1))
                                       version.slot = buffer_slot(0);
                             }),
                       "which nothing has read"));
  // A stage that does not wait for its sends before their buffer is filled again.
  EXPECT_TRUE(contains(fault(1,
                             [&](std::vector<Step>& steps) {
                               std::erase_if(steps, [&](const Step& step) {
                                 return step.kind == Kind::kWait && step.pass.micro > 0;
                               });
                             }),
                       "while a send may still read it"));
  // Two patches in the other order: the tags do not match.
  EXPECT_TRUE(contains(fault(0,
                             [&](std::vector<Step>& steps) {
                               std::vector<Step*> sends;
                               for (Step& step : steps)
                                 if (step.kind == Kind::kSend && step.turn == 2)
                                   sends.push_back(&step);
                               std::swap(sends[0]->pass.micro, sends[1]->pass.micro);
                             }),
                       "the send it meets is"));
  // A patch that reads keys two steps old.
  EXPECT_NE(fault(1,
                  [&](std::vector<Step>& steps) {
                    for (Step& step : steps)
                      if (step.kind == Kind::kCompute && step.turn == 2 && step.pass.micro == 1)
                        --step.reads.back().turn;
                  }),
            "");
}

// Both directions of a two-stage pipeline on one communicator: a send ends only when its receive is
// posted, and a receive is posted only when the rank comes to it. With two patches or more both
// stages send and neither receives.
TEST(PipeFusionPlan, OneQueueForBothDirectionsDeadlocks) {
  for (const int patches : {1, 2, 4}) {
    const DenoisePlanConfig config = patch_job({1, 2}, equal(patches), 4, 1, 1);
    std::vector<Plan> plans = plan_denoise(config);
    ASSERT_EQ(check_plans(plans, denoise_rules(config)), std::nullopt);
    for (Plan& plan : plans) {
      std::vector<Step> in_order;
      for (const Step& step : plan.steps) {
        if (step.kind == Kind::kPost || step.kind == Kind::kWait) continue;
        in_order.push_back(step);
        if (step.kind == Kind::kAwait) in_order.back().kind = Kind::kReceive;
        if (step.kind == Kind::kSend) {
          in_order.push_back(step);
          in_order.back().kind = Kind::kWait;
        }
      }
      plan.steps = in_order;
    }
    const std::string found = check_plans(plans, denoise_rules(config)).value_or("");
    EXPECT_EQ(found.find("deadlock") != std::string::npos, patches > 1) << patches << found;
  }
}

// A schedule that takes the number of patches for that of stages leaves out patches, or waits for
// some that never come.
TEST(PipeFusionPlan, PatchesThatAreNotTheStagesAreFound) {
  for (const auto& [patches, stages] : std::vector<std::pair<int, int>>{{3, 2}, {4, 3}, {6, 2}}) {
    const DenoisePlanConfig config = patch_job({1, stages}, equal(patches), 4, 1, 1);
    for (const bool everywhere : {true, false}) {
      std::vector<Plan> plans = plan_denoise(config);
      for (Plan& plan : plans)
        if (everywhere || plan.rank == 0)
          std::erase_if(plan.steps, [&](const Step& step) { return step.pass.micro > stages; });
      EXPECT_NE(check_plans(plans, denoise_rules(config)), std::nullopt) << patches << stages;
    }
  }
}

}  // namespace
}  // namespace weft::test
