#include "parallel/bootstrap/cpu_share.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "parallel/host/control_groups.h"

namespace weft {
namespace {

// A variable that holds a number of CPUs. 0 where it is not set or holds anything else.
int cpus_in(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text ? std::max(0, std::atoi(text)) : 0;
}

std::string cpus_text(double cpus) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", cpus, cpus == 1 ? "CPU" : "CPUs");
  return text;
}

// srun counts the CPUs of each task. A batch script is no task but has those of all tasks of its
// node; a process of mpirun stands for a task.
int slurm_tasks(const Environment& environment) {
  if (environment("SLURM_STEP_NUM_TASKS") || detect_launch(environment).ranks > 1) return 1;
  const char* text = environment("SLURM_TASKS_PER_NODE");
  const std::vector<int> tasks = parse_tasks_per_node(text ? text : "");
  return tasks.empty() ? 1 : tasks.front();  // the script runs on the first node
}

std::string list_of(const cpu_set_t& mask) {
  std::string list;
  for (int cpu = 0, end = 0; cpu < CPU_SETSIZE; cpu = end + 1) {
    for (end = cpu; end < CPU_SETSIZE && CPU_ISSET(end, &mask);) ++end;
    if (end == cpu) continue;
    list += (list.empty() ? "" : ",") + std::to_string(cpu);
    if (end - cpu > 1) list += "-" + std::to_string(end - 1);
  }
  return list;
}

// The CPUs of the mpirun that started this process. All CPUs where it cannot be found.
cpu_set_t mask_of_mpirun() {
  cpu_set_t mask;
  const pid_t mpirun = mpirun_above();
  if (mpirun == 0 || sched_getaffinity(mpirun, sizeof mask, &mask) != 0)
    std::memset(&mask, 0xff, sizeof mask);
  return mask;
}

}  // namespace

Affinity affinity() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return {list_of(mask), CPU_COUNT(&mask)};
  return {"all", static_cast<int>(std::thread::hardware_concurrency())};  // more than a mask holds
}

std::string host_identity(const std::string& root) {
  std::ifstream file(root + "/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<CpuPool> cpu_pools(const Environment& environment, const Affinity& affinity,
                               const std::string& root) {
  const std::string host = host_identity(root);
  std::vector<CpuPool> pools;
  if (const int cpus = cpus_in(environment, "SLURM_CPUS_PER_TASK"); cpus > 0) {
    const int tasks = slurm_tasks(environment);
    const std::string of = tasks > 1 ? " of " + std::to_string(tasks) + " tasks" : "";
    pools.push_back({"SLURM_CPUS_PER_TASK" + of, static_cast<double>(cpus) * tasks});
  }
  if (const int threads = cpus_in(environment, "OMP_NUM_THREADS"); threads > 0)
    pools.push_back({"OMP_NUM_THREADS", static_cast<double>(threads)});
  pools.push_back({.name = "affinity mask of " + cpus_text(affinity.count),
                   .cpus = static_cast<double>(affinity.count),
                   .key = host + " mask " + affinity.list});
  for (const CpuQuota& quota : cpu_quotas(root))
    pools.push_back({.name = "control group's quota of " + cpus_text(quota.cpus),
                     .cpus = quota.cpus,
                     .key = host + " group " + quota.group});
  return pools;
}

std::vector<CpuPool> cpu_pools() {
  return cpu_pools([](const char* name) { return std::getenv(name); }, affinity());
}

std::string pool_keys(std::span<const CpuPool> pools) {
  std::string text;
  for (const CpuPool& pool : pools)
    if (!pool.key.empty()) text += pool.key + "\n";
  return text;
}

void count_processes(std::span<CpuPool> pools, std::span<const std::string> keys_of_all) {
  for (CpuPool& pool : pools) {
    if (pool.key.empty()) continue;
    pool.processes =
        static_cast<int>(std::ranges::count_if(keys_of_all, [&](const std::string& all) {
          std::istringstream lines(all);
          for (std::string key; std::getline(lines, key);)
            if (key == pool.key) return true;
          return false;
        }));
  }
}

ThreadCount threads_of_rank(std::span<const CpuPool> pools, int ranks) {
  ThreadCount least;
  double least_share = 0;
  for (const CpuPool& pool : pools) {
    const int rivals = std::max(1, pool.processes) * std::max(1, ranks);
    // A quota such as 0.3 / 0.1 is rounded to a little less than the whole number that it stands
    // for.
    const double share = std::floor(pool.cpus / rivals + 1e-6);
    if (!least.source.empty() && share >= least_share) continue;
    least_share = share;
    least.threads = static_cast<int>(std::clamp(share, 1.0, 4096.0));
    least.source = pool.name;
    if (rivals > 1) least.source += ", which " + std::to_string(rivals) + " ranks share";
  }
  return least;
}

std::string to_string(const ThreadCount& count) {
  return std::to_string(count.threads) + (count.threads == 1 ? " thread" : " threads") +
         " a rank: " + count.source;
}

void lift_mpirun_binding(const Launch& launch, int64_t threads) {
  if (launch.launcher != Launcher::kMpirun) return;
  cpu_set_t bound, all;
  if (sched_getaffinity(0, sizeof bound, &bound) != 0) return;
  const cpu_set_t given = mask_of_mpirun();
  if (sched_setaffinity(0, sizeof given, &given) != 0 ||
      sched_getaffinity(0, sizeof all, &all) != 0)
    return;
  const int64_t wanted =
      threads > 0 ? threads : std::max(1, CPU_COUNT(&all) / std::max(1, launch.ranks_here));
  if (CPU_COUNT(&bound) >= wanted) sched_setaffinity(0, sizeof bound, &bound);
}

}  // namespace weft
