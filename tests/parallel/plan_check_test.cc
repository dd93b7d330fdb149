// Tests the checker of plans: it finds each fault of hand-made plans, and each change of one step
// or one message in plans of generations and of token rounds.
#include "parallel/schedule/plan_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "parallel/schedule/denoise_plan.h"
#include "parallel/schedule/token_plan.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Kind = Step::Kind;

struct Sample {
  std::string name;
  std::vector<Plan> plans;
  PlanRules rules;
};

Sample denoise(std::initializer_list<std::pair<Axis, int>> axes) {
  DenoisePlanConfig config{.steps = {{0, 2}, {0, 2}, {1, 1}},
                           .blocks = {7, 5},
                           .hidden_bytes = 96,
                           .latent_bytes = 256,
                           .joint_rows = {3, 4}};
  for (const auto& [axis, parts] : axes) config.layout[axis] = parts;
  for (int i = 0; i < config.layout.sequence(); ++i) config.tokens.push_back(10 + i);
  return {to_string(config.layout), plan_denoise(config), {.bytes = [config](const Step& message) {
            return message_bytes(config, message);
          }}};
}

Sample tokens(int stages, int micros, int rounds) {
  TokenPlanConfig config{
      .blocks = 7, .stages = stages, .rounds = rounds, .hidden_bytes = 64, .result_bytes = 4};
  for (int micro = 0; micro < micros; ++micro) config.micros.push_back({7 + micro, 1 + micro});
  return {std::to_string(rounds) + " rounds",
          plan_tokens(config),
          {.bytes = [config](const Step& message) { return message_bytes(config, message); }}};
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  all.push_back(denoise({}));
  all.push_back(denoise({{Axis::kCfg, 2}}));
  all.push_back(denoise({{Axis::kLayers, 3}}));
  all.push_back(denoise({{Axis::kCfg, 2}, {Axis::kLayers, 2}}));
  all.push_back(denoise({{Axis::kRing, 2}, {Axis::kLayers, 2}}));
  all.push_back(denoise({{Axis::kUlysses, 3}, {Axis::kTensor, 2}}));
  all.push_back(tokens(3, 3, 1));
  all.push_back(tokens(3, 2, 3));
  return all;
}

std::string check(const Sample& sample, const std::vector<Plan>& plans) {
  return check_plans(plans, sample.rules).value_or("");
}

// Calls f(changed plans, description) with every step of every plan replaced by what change(step)
// returns, one at a time.
template <class Change, class F>
void for_steps(const Sample& sample, const Change& change, const F& f) {
  for (size_t rank = 0; rank < sample.plans.size(); ++rank)
    for (size_t i = 0; i < sample.plans[rank].steps.size(); ++i) {
      const Step& step = sample.plans[rank].steps[i];
      for (const std::vector<Step>& steps : change(step)) {
        std::vector<Plan> plans = sample.plans;
        auto& list = plans[rank].steps;
        list.insert(list.erase(list.begin() + static_cast<ptrdiff_t>(i)), steps.begin(),
                    steps.end());
        f(plans, sample.name + " rank " + std::to_string(rank) + " " + to_string(step));
      }
    }
}

template <class Change>
int expect_faults(const Change& change) {
  int changes = 0;
  for (const Sample& sample : samples())
    for_steps(sample, change, [&](const std::vector<Plan>& plans, const std::string& what) {
      ++changes;
      EXPECT_NE(check(sample, plans), "") << what;
    });
  return changes;
}

TEST(CheckPlans, AcceptsTheSamples) {
  for (const Sample& sample : samples()) EXPECT_EQ(check(sample, sample.plans), "") << sample.name;
}

TEST(CheckPlans, FindsEveryDroppedStep) {
  const auto drop = [](const Step&) { return std::vector<std::vector<Step>>(1); };
  EXPECT_GE(expect_faults(drop), 400);
}

TEST(CheckPlans, FindsEveryRepeatedStep) {
  const auto repeat = [](const Step& step) { return std::vector<std::vector<Step>>{{step, step}}; };
  EXPECT_GE(expect_faults(repeat), 400);
}

TEST(CheckPlans, FindsEveryChangedVersion) {
  constexpr int kKinds = static_cast<int>(SlotKind::kCount);
  const std::vector<std::function<void(SlotVersion & version, int by)>> changes{
      [](SlotVersion& version, int by) { version.turn += by; },
      [](SlotVersion& version, int by) { version.blocks += by; },
      [](SlotVersion& version, int by) { version.slot.segment += by; },
      // The results of a round's micro-batches have one version, and so cannot be told apart.
      [](SlotVersion& version, int by) {
        version.slot.part += version.slot.kind == SlotKind::kResults ? 100 * by : by;
      },
      [](SlotVersion& version, int by) { version.slot.branch += by; },
      [](SlotVersion& version, int by) {
        const int kind = static_cast<int>(version.slot.kind) + by;
        version.slot.kind = static_cast<SlotKind>((kind + kKinds) % kKinds);
      }};
  const auto change = [&](const Step& step) {
    std::vector<std::vector<Step>> changed;
    for (auto versions : {&Step::reads, &Step::writes})
      for (size_t k = 0; k < (step.*versions).size(); ++k)
        for (const auto& alter : changes)
          for (const int by : {-1, 1}) {
            Step other = step;
            alter((other.*versions)[k], by);
            changed.push_back({other});
          }
    return changed;
  };
  EXPECT_GE(expect_faults(change), 6000);
}

TEST(CheckPlans, FindsEveryChangedMessage) {
  const auto change = [](const Step& step) {
    std::vector<std::vector<Step>> changed;
    if (step.peer < 0) return changed;
    for (int peer = -1; peer <= 6; ++peer) {
      Step other = step;
      other.peer = peer;
      if (peer != step.peer) changed.push_back({other});
    }
    for (const int64_t by : {-1, 1}) {
      Step other = step;
      other.bytes += by;
      changed.push_back({other});
    }
    for (const auto field : {&Pass::step, &Pass::branch, &Pass::micro}) {
      Step other = step;
      other.pass.*field += 1;
      changed.push_back({other});
    }
    Step other = step;
    other.payload = Payload::kText;
    changed.push_back({other});
    other = step;
    ++other.tokens.end;
    changed.push_back({other});
    return changed;
  };
  EXPECT_GE(expect_faults(change), 3000);
}

bool touches(const std::vector<SlotVersion>& versions, const SlotId& slot) {
  return std::ranges::find(versions, slot, &SlotVersion::slot) != versions.end();
}

// Returns whether two neighbouring steps of a rank must keep their order.
bool ordered(const Step& a, const Step& b) {
  const auto writes = [](const Step& writer, const Step& other) {
    return std::ranges::any_of(writer.writes, [&](const SlotVersion& version) {
      return touches(other.reads, version.slot) || touches(other.writes, version.slot);
    });
  };
  const auto receives = [](const Step& step) {
    return step.kind == Kind::kPost || step.kind == Kind::kReceive;
  };
  if (a.turn != b.turn || writes(a, b) || writes(b, a)) return true;
  if (a.kind == Kind::kLoad || b.kind == Kind::kLoad)
    return a.kind == Kind::kCompute || b.kind == Kind::kCompute;
  if (a.kind == Kind::kSend && b.kind == Kind::kWait) return touches(b.reads, a.reads[0].slot);
  return a.peer == b.peer &&
         ((a.kind == Kind::kSend && b.kind == Kind::kSend) || (receives(a) && receives(b)));
}

TEST(CheckPlans, FindsEverySwapOfDependentSteps) {
  int dependent = 0, independent = 0;
  for (const Sample& sample : samples())
    for (size_t rank = 0; rank < sample.plans.size(); ++rank)
      for (size_t i = 0; i + 1 < sample.plans[rank].steps.size(); ++i) {
        std::vector<Plan> plans = sample.plans;
        Step &a = plans[rank].steps[i], &b = plans[rank].steps[i + 1];
        const bool order = ordered(a, b);
        (order ? dependent : independent) += 1;
        std::swap(a, b);
        const std::string fault = check(sample, plans);
        if (order)
          EXPECT_NE(fault, "") << sample.name << " rank " << rank << " " << to_string(b);
        else  // a wait that comes sooner can stop the sender for good
          EXPECT_TRUE(fault.empty() || fault.starts_with("deadlock")) << fault;
      }
  EXPECT_GE(dependent, 200);
  EXPECT_GE(independent, 80);
}

// Removes the message that starts at `send`: the send, its wait where no other send shares it, and
// the receive, posted or not.
void remove_message(std::vector<Plan>& plans, size_t rank, size_t send) {
  auto& steps = plans[rank].steps;
  const Step sent = steps[send];
  const auto is_sent_to = [](const Step& step, int peer) {
    return step.kind == Kind::kSend && step.peer == peer;
  };
  const auto before =
      std::ranges::count_if(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(send),
                            [&](const Step& step) { return is_sent_to(step, sent.peer); });
  const auto others = std::ranges::count_if(steps, [&](const Step& step) {
    return step.kind == Kind::kSend && step.reads == sent.reads;
  });
  std::erase_if(steps, [&, i = size_t{0}](const Step& step) mutable {
    return i++ == send || (others == 1 && step.kind == Kind::kWait && step.reads == sent.reads);
  });
  auto& receiver = plans[sent.peer].steps;
  std::vector<SlotVersion> written;
  std::erase_if(receiver, [&, k = int64_t{0}](const Step& step) mutable {
    const bool comes = (step.kind == Kind::kPost || step.kind == Kind::kReceive) &&
                       step.peer == static_cast<int>(rank);
    if (!comes || k++ != before) return false;
    written = step.writes;
    return true;
  });
  std::erase_if(receiver, [&](const Step& step) {
    return step.kind == Kind::kAwait && step.writes == written;
  });
}

TEST(CheckPlans, FindsEveryMissingMessage) {
  int messages = 0;
  for (const Sample& sample : samples())
    for (size_t rank = 0; rank < sample.plans.size(); ++rank)
      for (size_t i = 0; i < sample.plans[rank].steps.size(); ++i) {
        if (sample.plans[rank].steps[i].kind != Kind::kSend) continue;
        ++messages;
        std::vector<Plan> plans = sample.plans;
        const Step& send = sample.plans[rank].steps[i];
        remove_message(plans, rank, i);
        EXPECT_NE(check(sample, plans), "") << sample.name << " " << to_string(send);
        // The receiver reads an older version instead, or nothing.
        const std::string fault = check(sample, {plans[send.peer]});
        EXPECT_TRUE(fault.find("but it holds") != std::string::npos ||
                    fault.find("unwritten") != std::string::npos)
            << sample.name << " " << to_string(send) << ": " << fault;
      }
  EXPECT_GE(messages, 80);
}

// Bytes that both ends agree on, but not with the formula.
TEST(CheckPlans, FindsBytesThatNoFormulaGives) {
  Sample sample = denoise({{Axis::kLayers, 2}});
  for (Plan& plan : sample.plans)
    for (Step& step : plan.steps)
      if (step.payload == Payload::kHidden) step.bytes += 4;
  EXPECT_EQ(check_plans(sample.plans), std::nullopt);
  EXPECT_TRUE(contains(check(sample, sample.plans), "bytes of its formula"));
}

TEST(CheckPlans, FindsIllegalBlocks) {
  Sample sample = denoise({});
  for (const BlockRange& blocks :
       {BlockRange{0, 8, 7}, BlockRange{-1, 7, 7}, BlockRange{3, 3, 7}}) {
    std::vector<Plan> plans = sample.plans;
    plans[0].steps[1].blocks = blocks;
    EXPECT_TRUE(contains(check(sample, plans), "illegal block range"));
  }
}

TEST(CheckPlans, FindsAnEndWithoutItsResults) {
  Sample sample = tokens(2, 1, 1);
  sample.plans[0].ends.push_back({hidden_slot(0), 1, 7});
  EXPECT_NE(check(sample, sample.plans), "");
}

constexpr SlotId kOwn = hidden_slot(0), kTheirs = hidden_slot(1);

TEST(CheckPlans, FindsADeadlockOfRendezvousSends) {
  const auto both = [&](bool wait_first, bool post) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 2; ++rank) {
      const Step send{.kind = Kind::kSend, .peer = 1 - rank, .bytes = 64, .reads = {{kOwn, 0}}},
          receive{.kind = Kind::kReceive, .peer = 1 - rank, .bytes = 64, .writes = {{kTheirs, 0}}},
          wait{.kind = Kind::kWait, .reads = {{kOwn, 0}}};
      Plan plan{.rank = rank, .ranks = 2, .begins = {{kOwn, 0}}, .ends = {{kTheirs, 0}}};
      plan.steps = {send, receive, wait};
      if (wait_first) std::swap(plan.steps[1], plan.steps[2]);
      if (post) {
        std::erase_if(plan.steps, [](const Step& step) { return step.kind == Kind::kReceive; });
        plan.steps.insert(plan.steps.begin(), receive);
        plan.steps.front().kind = Kind::kPost;
        plan.steps.push_back(receive);
        plan.steps.back().kind = Kind::kAwait;
      }
      plans.push_back(plan);
    }
    return check_plans(plans).value_or("");
  };
  EXPECT_EQ(both(false, false), "");
  EXPECT_EQ(both(false, true), "");  // post, send, wait, await
  EXPECT_TRUE(contains(both(true, false), "deadlock: rank 0 stands at wait"));
}

// Each of three ranks awaits what the one before it sends, and sends then: every pair's messages
// are in one order, but the pairs wait for each other in a circle.
TEST(CheckPlans, FindsACircleOfPairs) {
  const auto circle = [](bool first_sends) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 3; ++rank) {
      const Step send{
          .kind = Kind::kSend, .peer = (rank + 1) % 3, .bytes = 64, .reads = {{kOwn, 0}}},
          receive{.kind = Kind::kReceive,
                  .peer = (rank + 2) % 3,
                  .bytes = 64,
                  .writes = {{kTheirs, 0}}},
          wait{.kind = Kind::kWait, .reads = {{kOwn, 0}}};
      Plan plan{.rank = rank, .ranks = 3, .begins = {{kOwn, 0}}, .ends = {{kTheirs, 0}}};
      plan.steps = {receive, send, wait};
      if (first_sends && rank == 0) plan.steps = {send, receive, wait};
      plans.push_back(plan);
    }
    return check_plans(plans).value_or("");
  };
  EXPECT_EQ(circle(true), "");
  EXPECT_TRUE(contains(circle(false), "deadlock: rank 0 stands at receive")) << circle(false);
}

// Two ranks that read each other's features of the turn before.
std::vector<Plan> stale_plans(int turns) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 2; ++rank) {
    // The peer's features alternate between slots.
    const auto of_peer = [](int turn) { return patch_slot(turn % 2); };
    Plan plan{
        .rank = rank, .ranks = 2, .begins = {{kLatentSlot, 0}}, .ends = {{kLatentSlot, turns}}};
    plan.steps.push_back({.kind = Kind::kLoad});
    for (int turn = 0; turn < turns; ++turn) {
      const SlotVersion own{kOwn, turn, 1}, theirs{of_peer(turn), turn, 1};
      Step compute{.turn = turn,
                   .blocks = {0, 1, 1},
                   .stale = turn > 0 ? 1 : 0,
                   .reads = {{kLatentSlot, turn}},
                   .writes = {own}};
      if (turn > 0) compute.reads.push_back({of_peer(turn - 1), turn - 1, 1});
      plan.steps.push_back(compute);
      if (turn + 1 < turns) {
        plan.steps.push_back(
            {.kind = Kind::kSend, .turn = turn, .peer = 1 - rank, .bytes = 8, .reads = {own}});
        plan.steps.push_back({.kind = Kind::kReceive,
                              .turn = turn,
                              .peer = 1 - rank,
                              .bytes = 8,
                              .writes = {theirs}});
        plan.steps.push_back({.kind = Kind::kWait, .turn = turn, .reads = {own}});
      }
      plan.steps.push_back({.kind = Kind::kUpdate,
                            .turn = turn,
                            .reads = {{kLatentSlot, turn}, own},
                            .writes = {{kLatentSlot, turn + 1}}});
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

TEST(CheckPlans, HoldsReadsToTheirStaleness) {
  const std::vector<Plan> plans = stale_plans(4);
  const auto fault = [](const std::vector<Plan>& of, int stale) {
    return check_plans(of, {.bytes = {}, .stale = stale}).value_or("");
  };
  EXPECT_EQ(fault(plans, 1), "");
  EXPECT_TRUE(contains(fault(plans, 0), "stale by 0 turns at most"));
  for (size_t i = 0; i < plans[1].steps.size(); ++i) {
    if (plans[1].steps[i].stale == 0) continue;
    std::vector<Plan> changed = plans;
    changed[1].steps[i].stale = 0;
    EXPECT_TRUE(contains(fault(changed, 1), "too old"));
    changed = plans;
    ++changed[1].steps[i].reads[1].turn;  // declares features that have not come
    EXPECT_TRUE(contains(fault(changed, 1), "but it holds"));
  }
}

TEST(ProofOf, CountsWhatItProves) {
  const Sample sample = denoise({{Axis::kCfg, 2}});
  const std::string proof = proof_of(sample.plans, sample.rules);
  EXPECT_TRUE(proof.starts_with("2 ranks, ")) << proof;
  EXPECT_TRUE(contains(proof, " 5 messages: "));
  EXPECT_TRUE(contains(proof, "bytes follow the formula"));
}

}  // namespace
}  // namespace weft::test
