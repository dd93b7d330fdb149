// Tests that a rank runs as many threads as its share of the CPUs that its job was given.
#include "parallel/bootstrap/cpu_share.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <map>
#include <thread>

#include "tests/parallel/fake_root.h"

namespace weft {
namespace {

using test::FakeRoot;
using Variables = std::map<std::string, std::string>;

std::vector<CpuPool> pools_of(const Variables& variables, const Affinity& affinity,
                              const std::string& root = "/nowhere") {
  return cpu_pools(
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      affinity, root);
}

std::string alone(const Variables& variables, int cpus, int ranks = 1) {
  return to_string(threads_of_rank(pools_of(variables, {"some", cpus}), ranks));
}

// Describes the threads of the first of several processes.
std::string first_of(std::vector<std::vector<CpuPool>> processes) {
  std::vector<std::string> keys;
  for (const auto& pools : processes) keys.push_back(pool_keys(pools));
  count_processes(processes[0], keys);
  return to_string(threads_of_rank(processes[0]));
}

TEST(CpuShare, TheLeastLimitCounts) {
  EXPECT_EQ(alone({}, 8), "8 threads a rank: affinity mask of 8 CPUs");
  EXPECT_EQ(alone({}, 8, 2), "4 threads a rank: affinity mask of 8 CPUs, which 2 ranks share");
  EXPECT_EQ(alone({}, 8, 3), "2 threads a rank: affinity mask of 8 CPUs, which 3 ranks share");
  EXPECT_EQ(alone({}, 2, 5), "1 thread a rank: affinity mask of 2 CPUs, which 5 ranks share");
  EXPECT_EQ(alone({{"SLURM_CPUS_PER_TASK", "2"}}, 8), "2 threads a rank: SLURM_CPUS_PER_TASK");
  EXPECT_EQ(alone({{"SLURM_CPUS_PER_TASK", "2"}}, 2), "2 threads a rank: SLURM_CPUS_PER_TASK");
  EXPECT_EQ(alone({{"SLURM_CPUS_PER_TASK", "9"}}, 8), "8 threads a rank: affinity mask of 8 CPUs");
  EXPECT_EQ(alone({{"OMP_NUM_THREADS", "3,2"}}, 8), "3 threads a rank: OMP_NUM_THREADS");
  for (const char* other : {"", "0", "-4", "many"})
    EXPECT_EQ(alone({{"SLURM_CPUS_PER_TASK", other}, {"OMP_NUM_THREADS", other}}, 1),
              "1 thread a rank: affinity mask of 1 CPU");
}

// srun counts the CPUs per task. The batch script itself has those of the tasks of its node.
TEST(CpuShare, SlurmCountsTasks) {
  Variables job{{"SLURM_CPUS_PER_TASK", "2"}, {"SLURM_TASKS_PER_NODE", "4(x2)"}};
  EXPECT_EQ(alone(job, 64), "8 threads a rank: SLURM_CPUS_PER_TASK of 4 tasks");
  EXPECT_EQ(alone(job, 64, 4),
            "2 threads a rank: SLURM_CPUS_PER_TASK of 4 tasks, which 4 ranks share");
  job["SLURM_STEP_NUM_TASKS"] = "8";
  EXPECT_EQ(alone(job, 64), "2 threads a rank: SLURM_CPUS_PER_TASK");
  job["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(alone(job, 64), "2 threads a rank: SLURM_CPUS_PER_TASK");
  job.erase("SLURM_STEP_NUM_TASKS");
  job["OMPI_COMM_WORLD_SIZE"] = "8";  // mpirun in a batch script
  EXPECT_EQ(alone(job, 64), "2 threads a rank: SLURM_CPUS_PER_TASK");
}

// A mask is divided by the processes that have the same one, wherever the others are bound.
TEST(CpuShare, EqualMasksAreShared) {
  const auto bound = [](const char* list, int count) { return pools_of({}, {list, count}); };
  EXPECT_EQ(first_of({bound("0-3", 4), bound("4-7", 4)}),
            "4 threads a rank: affinity mask of 4 CPUs");
  EXPECT_EQ(first_of({bound("0-3", 4), bound("0-3", 4), bound("4-7", 4)}),
            "2 threads a rank: affinity mask of 4 CPUs, which 2 ranks share");
  EXPECT_EQ(first_of({bound("0", 1), bound("1", 1)}), "1 thread a rank: affinity mask of 1 CPU");
  EXPECT_EQ(first_of({bound("0-7", 8), bound("0-7", 8), bound("0-7", 8)}),
            "2 threads a rank: affinity mask of 8 CPUs, which 3 ranks share");
}

TEST(CpuShare, EqualMasksOfTwoHostsAreNotShared) {
  FakeRoot here("here"), there("there");
  here.write("proc/sys/kernel/random/boot_id", "one\n");
  there.write("proc/sys/kernel/random/boot_id", "two\n");
  const Affinity mask{"0-7", 8};
  EXPECT_EQ(first_of({pools_of({}, mask, here.path()), pools_of({}, mask, there.path())}),
            "8 threads a rank: affinity mask of 8 CPUs");
  EXPECT_EQ(first_of({pools_of({}, mask, here.path()), pools_of({}, mask, here.path())}),
            "4 threads a rank: affinity mask of 8 CPUs, which 2 ranks share");
}

// Quotas are divided by the ranks inside their group; that of a group around others by all of them.
TEST(CpuShare, QuotasAreSharedByTheirGroups) {
  FakeRoot root("quota");
  root.write("sys/fs/cgroup/cgroup.procs", "");
  root.write("sys/fs/cgroup/job/one/cpu.max", "300000 100000");
  root.write("sys/fs/cgroup/job/two/cpu.max", "300000 100000");
  const auto in = [&](const char* group, const char* mask = "0-63", int cpus = 64) {
    root.write("proc/self/cgroup", std::string("0::/job/") + group + "\n");
    return pools_of({}, {mask, cpus}, root.path());
  };
  EXPECT_EQ(first_of({in("one")}), "3 threads a rank: control group's quota of 3 CPUs");
  EXPECT_EQ(first_of({in("one"), in("two")}), "3 threads a rank: control group's quota of 3 CPUs");
  EXPECT_EQ(first_of({in("one"), in("two"), in("one")}),
            "1 thread a rank: control group's quota of 3 CPUs, which 2 ranks share");
  root.write("sys/fs/cgroup/job/cpu.max", "400000 100000");
  EXPECT_EQ(first_of({in("one"), in("two")}),
            "2 threads a rank: control group's quota of 4 CPUs, which 2 ranks share");
  EXPECT_EQ(first_of({in("one", "0", 1), in("one", "1", 1)}),
            "1 thread a rank: affinity mask of 1 CPU");
}

TEST(CpuShare, PartsOfACpu) {
  FakeRoot root("parts");
  root.write("sys/fs/cgroup/cgroup.procs", "");
  root.write("proc/self/cgroup", "0::/\n");
  const auto quota = [&](const char* text, int ranks) {
    root.write("sys/fs/cgroup/cpu.max", text);
    return to_string(threads_of_rank(pools_of({}, {"0-7", 8}, root.path()), ranks));
  };
  EXPECT_EQ(quota("150000 100000", 1), "1 thread a rank: control group's quota of 1.5 CPUs");
  EXPECT_EQ(quota("50000 100000", 1), "1 thread a rank: control group's quota of 0.5 CPUs");
  EXPECT_EQ(quota("50000 100000", 4),
            "1 thread a rank: control group's quota of 0.5 CPUs, which 4 ranks share");
  EXPECT_EQ(quota("250000 100000", 1), "2 threads a rank: control group's quota of 2.5 CPUs");
  EXPECT_EQ(quota("900000 100000", 1), "8 threads a rank: affinity mask of 8 CPUs");
}

// The binding of a thread lasts as long as the thread.
void on_bound_thread(const std::function<void(const cpu_set_t& all)>& work) {
  std::thread([&] {
    cpu_set_t all, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    work(all);
  }).join();
}

TEST(CpuShare, OnlyMpirunsBindingIsLifted) {
  if (affinity().count < 2) GTEST_SKIP() << "one CPU";
  on_bound_thread([](const cpu_set_t& all) {
    for (const Launcher launcher : {Launcher::kNone, Launcher::kSlurm, Launcher::kSlurmRaw,
                                    Launcher::kTorchrun, Launcher::kForeign}) {
      lift_mpirun_binding({.launcher = launcher}, 2);
      EXPECT_EQ(affinity().count, 1);
    }
    // A rank of as many CPUs as it wants keeps them to itself.
    lift_mpirun_binding({.launcher = Launcher::kMpirun}, 1);
    EXPECT_EQ(affinity().count, 1);
    lift_mpirun_binding({.launcher = Launcher::kMpirun, .ranks = 4096, .ranks_here = 4096}, 0);
    EXPECT_EQ(affinity().count, 1);
    lift_mpirun_binding({.launcher = Launcher::kMpirun}, 0);
    EXPECT_GE(affinity().count, CPU_COUNT(&all));
  });
}

TEST(CpuShare, AffinityListsRanges) {
  on_bound_thread([](const cpu_set_t& all) {
    EXPECT_EQ(affinity().count, 1);
    EXPECT_EQ(affinity().list.find_first_not_of("0123456789"), std::string::npos);
    if (CPU_ISSET(0, &all) && CPU_ISSET(1, &all)) {
      cpu_set_t two;
      CPU_ZERO(&two);
      CPU_SET(0, &two);
      CPU_SET(1, &two);
      ASSERT_EQ(sched_setaffinity(0, sizeof two, &two), 0);
      EXPECT_EQ(affinity().list, "0-1");
    }
  });
}

}  // namespace
}  // namespace weft
