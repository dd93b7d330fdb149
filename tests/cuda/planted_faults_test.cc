// Faults that tests/gpu.sh must survive: each costs one row of its table. They only run where
// --gtest_also_run_disabled_tests asks for them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace weft {
namespace {

TEST(DISABLED_PlantedFaults, BeforeThem) {}
TEST(DISABLED_PlantedFaults, Crash) { std::abort(); }
TEST(DISABLED_PlantedFaults, BetweenThem) {}
TEST(DISABLED_PlantedFaults, Hang) {
  for (;;) pause();
}
TEST(DISABLED_PlantedFaults, WrongResult) { EXPECT_EQ(1 + 1, 3) << "as planted"; }
TEST(DISABLED_PlantedFaults, AfterThem) {}

}  // namespace
}  // namespace weft
