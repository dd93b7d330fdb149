// Tests that the environment tells which launcher started the process.
#include "parallel/bootstrap/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/check.h"
#include "parallel/bootstrap/meeting_point.h"

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

TEST(Launch, TorchrunsVariablesAreSeen) {
  std::map<std::string, std::string> job{{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "4"}, {"RANK", "3"}};
  EXPECT_EQ(in(job).launcher, Launcher::kTorchrun);
  EXPECT_EQ(in(job).rank, 3);
  EXPECT_EQ(in(job).ranks, 4);
  // A user who sets the variables by hand may leave out the local ones: on one host all ranks are
  // here.
  EXPECT_EQ(in(job).ranks_here, 1);
  EXPECT_EQ(in(job).rank_here, 0);
  for (const char* host : {"127.0.0.1", "localhost", "::1"}) {
    job["MASTER_ADDR"] = host;
    EXPECT_TRUE(in(job).one_host());
    EXPECT_EQ(in(job).rank_here, 3);
  }
  job["LOCAL_RANK"] = "1", job["LOCAL_WORLD_SIZE"] = "2";
  EXPECT_EQ(in(job).rank_here, 1);
  EXPECT_EQ(in(job).ranks_here, 2);
  EXPECT_FALSE(in(job).mpi());
  EXPECT_EQ(to_string(in(job)), "4 processes by torchrun");
  EXPECT_EQ(in({{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "1"}}).launcher, Launcher::kNone);
  EXPECT_EQ(to_string(in({})), "one process");
}

TEST(Launch, AnIndexedJobIsSeenWhereItsManifestSaysHowManyPodsThereAre) {
  std::map<std::string, std::string> pod{{"JOB_COMPLETION_INDEX", "2"},
                                         {"MASTER_ADDR", "job-0.svc"}};
  EXPECT_EQ(in(pod).launcher, Launcher::kNone);  // a shard of a batch
  pod["WEFT_RANKS"] = "3";
  const Launch launch = in(pod);
  EXPECT_EQ(launch.launcher, Launcher::kKubernetes);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.ranks, 3);
  EXPECT_EQ(launch.ranks_here, 1);
  EXPECT_EQ(to_string(launch), "3 processes by a Kubernetes indexed Job");
}

TEST(Launch, NodesAreOneProcessEach) {
  const std::vector<std::string> hosts{"a", "b", "a", "a"};
  const Launch launch = launch_on_nodes(hosts, 2);
  EXPECT_EQ(launch.launcher, Launcher::kNodes);
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.ranks, 4);
  EXPECT_EQ(launch.rank_here, 1);
  EXPECT_EQ(launch.ranks_here, 3);
  EXPECT_EQ(launch_on_nodes(hosts, 1).ranks_here, 1);
}

TEST(MeetingPoint, IsWhereTheLauncherSays) {
  const auto point = [](const std::map<std::string, std::string>& variables) {
    const Environment environment = [&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    };
    return meeting_point(detect_launch(environment), environment);
  };
  std::map<std::string, std::string> job{{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "4"}, {"RANK", "3"}};
  EXPECT_EQ(point(job).host, "h");
  EXPECT_EQ(point(job).port, kMeetingPort);
  job["MASTER_PORT"] = "29500";
  EXPECT_EQ(point(job).port, 29500);
  job["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // the agent listens there
  EXPECT_EQ(point(job).port, 29501);

  std::map<std::string, std::string> step{{"SLURM_STEP_NUM_TASKS", "4"},
                                          {"SLURM_JOB_ID", "123456"},
                                          {"SLURM_STEP_ID", "2"},
                                          {"SLURM_STEP_NODELIST", "n[08-10,12],m"}};
  const MeetingPoint slurm = point(step);
  EXPECT_EQ(slurm.host, "n08");
  EXPECT_EQ(slurm.job, "slurm 123456.2");
  EXPECT_GE(slurm.port, 20000);
  EXPECT_LT(slurm.port, 30000);
  step["SLURM_STEP_ID"] = "3";
  EXPECT_NE(point(step).port, slurm.port);
  step["SLURM_STEP_RESV_PORTS"] = "12005-12008";
  EXPECT_EQ(point(step).port, 12005);
  step["MASTER_ADDR"] = "login", step["MASTER_PORT"] = "7000";
  EXPECT_EQ(point(step).text(), "login port 7000");
  EXPECT_EQ(point({{"OMPI_COMM_WORLD_SIZE", "2"}}).host, "");
}

TEST(MeetingPoint, TheFirstOfSlurmsHostsIsParsedOrRefused) {
  for (const auto& [list, host] : std::map<std::string, std::string>{{"n[1-3,7]", "n1"},
                                                                     {"n[001-128],m2", "n001"},
                                                                     {"node7", "node7"},
                                                                     {"a,b[1-2]", "a"},
                                                                     {"r[2-3]c[05,07]", "r2c05"},
                                                                     {"r[2-3]-ib", "r2-ib"},
                                                                     {"", ""},
                                                                     {"n[", ""},
                                                                     {"n[]", ""},
                                                                     {"n[-3]", ""},
                                                                     {"n[x]", ""},
                                                                     {"n]1", ""},
                                                                     {",a", ""}})
    EXPECT_EQ(first_of_hosts(list), host) << list;
}

// A launcher of another MPI starts processes that would each run the whole job.
TEST(Launch, LaunchersOfOtherMpisAreNamed) {
  struct Row {
    std::map<std::string, std::string> variables;
    const char* named;
    int rank, ranks;
  };
  for (const Row& row : {
           Row{{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "2"}},
               "mpiexec of MPICH or Intel MPI (PMI_SIZE is 4)",
               3,
               4},
           Row{{{"PMI_SIZE", "4"}}, "mpiexec of MPICH or Intel MPI (PMI_SIZE is 4)", 0, 4},
           Row{{{"PMI_RANK", "5"}}, "mpiexec of MPICH or Intel MPI (PMI_RANK is 5)", 5, 6},
           Row{{{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
               "mpiexec of MPICH or Intel MPI (MPI_LOCALNRANKS is 2)",
               1,
               2},
           Row{{{"PALS_RANKID", "1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "8"}},
               "PALS (mpiexec of HPE Cray) (PMI_SIZE is 8)",
               1,
               8},
           Row{{{"PALS_RANKID", "0"}}, "PALS (mpiexec of HPE Cray) (PALS_RANKID is 0)", 0, 2},
           Row{{{"ALPS_APP_PE", "2"}}, "aprun (ALPS_APP_PE is 2)", 2, 3},
           Row{{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}},
               "mpirun of MVAPICH (MV2_COMM_WORLD_SIZE is 2)",
               1,
               2},
           Row{{{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}},
               "jsrun (JSM_NAMESPACE_SIZE is 2)",
               1,
               2},
           // Hydra starts one daemon on each of two nodes by srun.
           Row{{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"SLURM_STEP_NUM_TASKS", "2"}},
               "mpiexec of MPICH or Intel MPI (PMI_SIZE is 4)",
               3,
               4},
           Row{{{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"SLURM_STEP_NUM_TASKS", "1"}},
               "mpiexec of MPICH or Intel MPI (PMI_SIZE is 4)",
               3,
               4},
       }) {
    const Launch launch = in(row.variables);
    EXPECT_EQ(launch.launcher, Launcher::kForeign) << row.named;
    EXPECT_EQ(launch.foreign, row.named);
    EXPECT_EQ(launch.rank, row.rank) << row.named;
    EXPECT_EQ(launch.ranks, row.ranks) << row.named;
    EXPECT_FALSE(launch.mpi());
    try {
      refuse_foreign_launcher(launch);
      ADD_FAILURE() << row.named;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      for (const std::string& part :
           {launch.foreign, std::string("mpirun of Open MPI"), std::string("--ranks N"),
            "env -u " + launch.foreign.substr(
                            launch.foreign.rfind('(') + 1,
                            launch.foreign.rfind(" is ") - launch.foreign.rfind('(') - 1)})
        EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

// A process that is alone, or that a known launcher started, is no stranger's.
TEST(Launch, KnownLaunchersComeBeforeOthers) {
  using Variables = std::map<std::string, std::string>;
  for (const Variables& variables : {
           Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALNRANKS", "1"}},
           Variables{{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}},
           Variables{{"PALS_RANKID", "0"}, {"PMI_SIZE", "1"}},
           Variables{{"PALS_RANKID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}},
           Variables{{"PMI_SIZE", "many"}},
       }) {
    EXPECT_EQ(in(variables).launcher, Launcher::kNone) << variables.begin()->first;
    EXPECT_NO_THROW(refuse_foreign_launcher(in(variables)));
  }
  const Variables of_pmi{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  const auto with = [&](Variables more) {
    more.insert(of_pmi.begin(), of_pmi.end());
    return in(more).launcher;
  };
  EXPECT_EQ(with({{"OMPI_COMM_WORLD_SIZE", "2"}}), Launcher::kMpirun);
  EXPECT_EQ(with({{"SLURM_STEP_NUM_TASKS", "2"}}), Launcher::kSlurmRaw);  // srun --mpi=pmi2
  EXPECT_EQ(with({{"MASTER_ADDR", "h"}, {"WORLD_SIZE", "8"}}), Launcher::kTorchrun);
}

}  // namespace
}  // namespace weft
