// weft_measure layouts: its rows and their times.
#include <map>

#include "tests/bench/measure_testing.h"

namespace weft {
namespace {

using test::Outcome, test::measured, test::json_lines, test::kModel;

TEST(Bench, ComparesLayoutsOfTwoRanks) {
  const Outcome outcome =
      measured("layouts --tokens 8 --repeat 1 --dtype f32 --link-gbit 10 --link-ms 1 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, int> methods;
  for (const auto& object : json_lines(outcome.out)) {
    ++methods[object.at("method")];
    EXPECT_GT(object.at("seconds"), 0);
    EXPECT_GT(object.at("mean_seconds"), 0);
    if (object.at("method") != "one rank") {
      EXPECT_GT(object.at("simulated"), 0);
    }
  }
  for (const char* method : {"one rank", "cfg=2", "layers=2", "ring=2", "ulysses=2", "tensor=2"})
    EXPECT_EQ(methods[method], 2) << method;
  EXPECT_EQ(measured("layouts --ranks 3").code, 2);
}

// A step of the tiny model waits for the link's latency: a ring in two layers of two branches,
// displaced patches once, PipeFusion twice. The first step is exact.
TEST(Bench, ComparesDisplacedStepsWithExactOnes) {
  const Outcome outcome = measured("layouts --model " + kModel +
                                   " --tokens 64 --repeat 1 --steps 9 --dtype f32 --link-gbit 1 "
                                   "--link-ms 10 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, nlohmann::json> slow;
  for (const auto& object : json_lines(outcome.out))
    if (object.at("link") != "none") slow[object.at("method")] = object;
  EXPECT_GT(slow.at("ring=2").at("seconds"), 4 * 0.010);
  for (const auto& [method, layout] :
       std::map<std::string, std::string>{{"distrifusion:patches=2,warmup=1", "patch=2"},
                                          {"pcpp:patches=2,window=0.3,warmup=1", "patch=2"},
                                          {"pipefusion:patches=4,warmup=1", "layers=2"}}) {
    ASSERT_TRUE(slow.contains(method)) << outcome.out;
    const nlohmann::json& displaced = slow.at(method);
    EXPECT_EQ(displaced.at("layout"), layout);
    EXPECT_EQ(displaced.at("steps"), 9);
    EXPECT_LT(displaced.at("seconds"), 0.75 * slow.at("ring=2").at("seconds").get<double>());
    if (layout == "patch=2") {
      EXPECT_GT(displaced.at("mean_seconds"), displaced.at("seconds"));
    }
  }
}

}  // namespace
}  // namespace weft
