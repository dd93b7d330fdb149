// The slot table, links and drawing of `weft plan --method queue` against closed formulas.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

using nlohmann::json;
using test::Outcome, test::run;
using PlanQueue = test::Cli;

constexpr int64_t kSteps = 9, kBlocks = 10, kStages = 3, kQueueBlock = 2, kContext = 1;
// 81 frames are 21 latent frames of 2 x 2 tokens.
const std::string kPlan =
    "plan --model models/pocket --size 32x32 --num-frames 81 --steps 9 --dtype f32 --ranks 3 "
    "--layout layers=3 --method queue:block=2,context=1 --device-gflops 1 --device-gbs 1 ";

// The forward of every slot and column: "block.step", with the branch where there are two.
using Cells = std::map<std::pair<int64_t, size_t>, std::string>;

std::string name_of(const json& forward, bool both) {
  return forward[1].dump() + "." + forward[2].dump() + (both ? forward[3] == 0 ? "+" : "-" : "");
}

Cells listed(const json& queue, bool both) {
  Cells cells;
  for (size_t column = 0; column < queue["slots"].size(); ++column)
    for (const json& forward : queue["slots"][column]["forwards"])
      EXPECT_TRUE(
          cells.try_emplace({forward[0].get<int64_t>(), column}, name_of(forward, both)).second)
          << forward;
  return cells;
}

// The slots of the last steps of the blocks on the last stage.
std::vector<int64_t> last_steps(const json& queue) {
  std::vector<int64_t> slots;
  for (const json& forward : queue["slots"].back()["forwards"])
    if (forward[2] == kSteps - 1) slots.push_back(forward[0]);
  return slots;
}

TEST_F(PlanQueue, SlotsOfOneBranchFollowTheirFormulas) {
  const Outcome outcome = run(kPlan + "--guidance-scale 1 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json queue = json::parse(outcome.out).at("queue");
  EXPECT_EQ(queue["blocks"], kBlocks);
  EXPECT_EQ(queue["steps"], kSteps);
  EXPECT_EQ(queue["stages"], kStages);
  EXPECT_EQ(queue["idle_slots"], kStages * kStages - 1);
  EXPECT_EQ(queue["idle_law"], "N^2 - 1, N = 3 stages");
  ASSERT_EQ(std::ssize(queue["slots"]), kStages);
  int64_t first = kStages * (kStages - 1) / 2 + kStages - 1;
  for (int64_t j = 0; j < kSteps; ++j) first += std::min(j + 1, kBlocks);
  const std::vector<int64_t> ends = last_steps(queue);
  ASSERT_EQ(std::ssize(ends), kBlocks);
  EXPECT_EQ(ends.front() + 1, first);
  EXPECT_EQ(ends.back() + 1, kSteps * kBlocks + kStages * kStages - 1);
  EXPECT_EQ(ends[1] - ends[0], kSteps);  // the queue is full
  for (size_t stage = 0; stage < queue["slots"].size(); ++stage) {
    const json& forwards = queue["slots"][stage]["forwards"];
    ASSERT_EQ(std::ssize(forwards), kSteps * kBlocks);
    std::set<std::pair<int64_t, int64_t>> passes;
    for (size_t i = 0; i < forwards.size(); ++i) {
      const int64_t slot = forwards[i][0], block = forwards[i][1], step = forwards[i][2];
      EXPECT_TRUE(passes.emplace(block, step).second) << forwards[i];
      if (i > 0) {  // turns ascend, and in a turn the blocks descend
        EXPECT_GT(slot, forwards[i - 1][0].get<int64_t>());
        const int64_t before = forwards[i - 1][1],
                      turn = before + forwards[i - 1][2].get<int64_t>();
        EXPECT_TRUE(block + step > turn || (block + step == turn && block < before)) << forwards[i];
      }
      EXPECT_EQ(slot - static_cast<int64_t>(stage),
                queue["slots"][0]["forwards"][i][0].get<int64_t>());
    }
  }
}

TEST_F(PlanQueue, LinksCarryTheBytesOfTheirFormulas) {
  const json queue = json::parse(run(kPlan + "--json").out).at("queue");
  constexpr int64_t kTokens = 4, kWidth = 128, kRow = 16 * 4, kF32 = 4;  // of the pocket model
  const int64_t hidden = kSteps * kBlocks * 2 * (kQueueBlock + kContext) * kTokens * kWidth * kF32,
                latent = kSteps * (kBlocks * kQueueBlock + kContext) * kTokens * kRow * kF32;
  json expected = json::array();
  for (int64_t from = 0; from + 1 < kStages; ++from)
    expected.push_back(
        {{"from", from}, {"to", from + 1}, {"messages", 2 * kSteps * kBlocks}, {"bytes", hidden}});
  expected.push_back(
      {{"from", kStages - 1}, {"to", 0}, {"messages", kSteps * kBlocks}, {"bytes", latent}});
  EXPECT_EQ(queue["links"], expected);
  EXPECT_EQ(queue["idle_slots"], 2 * (kStages * kStages / 4) + kStages - 1);
  for (const json& column : queue["slots"])
    EXPECT_EQ(std::ssize(column["forwards"]), 2 * kSteps * kBlocks);
}

// Every row of the printed table is a row of the list, and rows that are left out are counted. With
// one branch all rows are printed.
TEST_F(PlanQueue, ThePrintedTableIsTheList) {
  for (const bool both : {false, true}) {
    const std::string job = kPlan + (both ? "" : "--guidance-scale 1 ");
    const json queue = json::parse(run(job + "--json").out).at("queue");
    const Cells cells = listed(queue, both);
    const int64_t slots = cells.rbegin()->first.first + 1;
    const Outcome outcome = run(job);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::string bubbles = "bubbles " + queue["idle_slots"].dump() + " of " +
                                std::to_string(slots) + " slots of a stage are idle";
    EXPECT_NE(outcome.out.find(bubbles), std::string::npos) << outcome.out;
    std::istringstream text(outcome.out.substr(outcome.out.find("\nslot ") + 1));
    std::string line;
    std::getline(text, line);
    EXPECT_NE(line.find("stage 0   stage 1   stage 2"), std::string::npos) << line;
    int64_t next = 0, omitted = 0;
    while (std::getline(text, line)) {
      std::istringstream words(line);
      if (std::string dots; line.starts_with("...")) {
        int64_t more = 0;
        words >> dots >> more;
        next += more;
        omitted += more;
        continue;
      }
      int64_t slot = -1;
      words >> slot;
      EXPECT_EQ(slot, next++) << line;
      for (size_t column = 0; column < kStages; ++column) {
        std::string cell;
        words >> cell;
        const auto found = cells.find({slot, column});
        EXPECT_EQ(cell, found == cells.end() ? "." : found->second) << line;
      }
    }
    EXPECT_EQ(next, slots);
    EXPECT_EQ(omitted > 0, both);
  }
}

TEST_F(PlanQueue, DrawsForwardsAndDecoding) {
  const std::string svg = path("plan.svg");
  const Outcome outcome = run(kPlan + "--svg " + svg);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::ifstream file(svg);
  const std::string drawn{std::istreambuf_iterator<char>(file), {}};
  for (const char* text : {"rank 2", ">0.0+<", ">decode 9<", "forwards (blue)", "</svg>"})
    EXPECT_NE(drawn.find(text), std::string::npos) << text;
}

}  // namespace
}  // namespace weft
