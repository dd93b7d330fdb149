// Tests that the environment tells which launcher started the process.
#include "parallel/launch.h"

#include <gtest/gtest.h>

#include <map>

namespace weft {
namespace {

Launch in(const std::map<std::string, std::string>& variables) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, MpirunComesFirst) {
  const Launch launch = in({{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                            {"SLURM_STEP_NUM_TASKS", "9"},
                            {"MASTER_ADDR", "a"},
                            {"WORLD_SIZE", "8"}});
  EXPECT_EQ(launch.launcher, Launcher::kMpirun);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.ranks, 4);
  EXPECT_EQ(launch.ranks_here, 3);
  EXPECT_EQ(to_string(launch), "4 processes by mpirun");
}

TEST(Launch, SrunNeedsPmix) {
  std::map<std::string, std::string> step{{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}};
  EXPECT_EQ(in(step).launcher, Launcher::kSlurmRaw);
  EXPECT_FALSE(in(step).mpi());
  step["PMIX_NAMESPACE"] = "slurm.pmix.1.0";
  EXPECT_EQ(in(step).launcher, Launcher::kSlurm);
  EXPECT_EQ(in(step).rank, 1);
  // A batch script is one process, however large its allocation.
  EXPECT_EQ(in({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).launcher, Launcher::kNone);
}

TEST(Launch, TorchrunIsSeen) {
  EXPECT_EQ(in({{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "4"}, {"RANK", "3"}}).launcher,
            Launcher::kTorchrun);
  EXPECT_EQ(in({{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "1"}}).launcher, Launcher::kNone);
  EXPECT_EQ(to_string(in({})), "one process");
}

}  // namespace
}  // namespace weft
