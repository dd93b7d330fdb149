// Tests that the environment tells which launcher started the process.
#include "parallel/bootstrap/launch.h"

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
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"SLURM_STEP_NUM_TASKS", "9"},
                            {"MASTER_ADDR", "a"},
                            {"WORLD_SIZE", "8"}});
  EXPECT_EQ(launch.launcher, Launcher::kMpirun);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.ranks, 4);
  EXPECT_EQ(launch.rank_here, 1);
  EXPECT_EQ(launch.ranks_here, 3);
  EXPECT_FALSE(launch.one_host());
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

// srun sets SLURM_NTASKS_PER_NODE only where the user gave --ntasks-per-node.
TEST(Launch, SrunAcrossNodesCountsTheTasksOfThisNode) {
  std::map<std::string, std::string> step{{"PMIX_NAMESPACE", "slurm.pmix.1.0"},
                                          {"SLURM_STEP_NUM_TASKS", "7"},
                                          {"SLURM_STEP_NUM_NODES", "4"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                                          {"SLURM_PROCID", "6"},
                                          {"SLURM_NODEID", "3"},
                                          {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(in(step).ranks_here, 1);
  EXPECT_EQ(in(step).rank_here, 0);
  EXPECT_FALSE(in(step).one_host());
  step["SLURM_NODEID"] = "1";
  step["SLURM_LOCALID"] = "1";
  EXPECT_EQ(in(step).ranks_here, 2);
  EXPECT_EQ(in(step).rank_here, 1);

  // The allocation's list counts only where it fits the step.
  step.erase("SLURM_STEP_TASKS_PER_NODE");
  step["SLURM_TASKS_PER_NODE"] = "1,2(x3)";
  EXPECT_EQ(in(step).ranks_here, 2);
  step["SLURM_NODEID"] = "0";
  EXPECT_EQ(in(step).ranks_here, 1);
  for (const char* other : {"8(x4)", "7", "4,3", "2(x", "", "1,2(x3),"}) {
    step["SLURM_TASKS_PER_NODE"] = other;
    EXPECT_EQ(in(step).ranks_here, 2) << other;  // an even share of 7 over 4
    EXPECT_FALSE(in(step).one_host()) << other;
  }

  // Several nodes never count as one host, one node always does.
  EXPECT_FALSE(in({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "2"}}).one_host());
  EXPECT_TRUE(in({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NUM_NODES", "1"}}).one_host());
  EXPECT_TRUE(in({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}}).one_host());
}

TEST(Launch, TasksPerNodeAreParsedOrRefused) {
  EXPECT_EQ(parse_tasks_per_node("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(parse_tasks_per_node("8"), std::vector<int>{8});
  for (const char* text : {"", "0", "-1", "2(x0)", "2(3)", "2(x3", "2,", ",2", "2 3", "a",
                           "1(x2000000)", "99999999999"})
    EXPECT_TRUE(parse_tasks_per_node(text).empty()) << text;
}

TEST(Launch, TorchrunIsSeen) {
  EXPECT_EQ(in({{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "4"}, {"RANK", "3"}}).launcher,
            Launcher::kTorchrun);
  EXPECT_EQ(in({{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "1"}}).launcher, Launcher::kNone);
  EXPECT_EQ(to_string(in({})), "one process");
}

}  // namespace
}  // namespace weft
