#pragma once
// CPU share: how many threads a rank may run on the CPUs that its process was given.
#include <span>
#include <string>
#include <vector>

#include "parallel/bootstrap/launch.h"

namespace weft {

// CPUs that ranks share: those of an affinity mask or of a control group's quota, or those that a
// variable of the environment gives to one process.
struct CpuPool {
  std::string name;  // "affinity mask of 4 CPUs"
  double cpus;
  std::string key{};  // the same in all processes that share the pool; empty: one process has it
  int processes = 1;  // those that share it
};

// The CPUs that the scheduler may give to a process.
struct Affinity {
  std::string list;  // "0-3,8"
  int count;
};
Affinity affinity();  // of this process

// The pools of this process. `root` is a folder that stands for /.
std::vector<CpuPool> cpu_pools(const Environment& environment, const Affinity& affinity,
                               const std::string& root = "");
std::vector<CpuPool> cpu_pools();

// The keys of one process's pools as a text for the others, and the count of the processes that
// have each of them, from the texts of all.
std::string pool_keys(std::span<const CpuPool> pools);
void count_processes(std::span<CpuPool> pools, std::span<const std::string> keys_of_all);

// The threads of each of a process's ranks, of which there are `ranks`: the least share of a pool,
// at least 1.
struct ThreadCount {
  int threads = 1;
  std::string source;  // "affinity mask of 4 CPUs, which 2 ranks share"
};
ThreadCount threads_of_rank(std::span<const CpuPool> pools, int ranks = 1);
// "2 threads a rank: SLURM_CPUS_PER_TASK"
std::string to_string(const ThreadCount& count);

// Open MPI binds a process to one core by default, however many threads it runs. Where this process
// of mpirun has fewer CPUs than `threads` (0: than its share of the host's), it gets those of
// mpirun.
void lift_mpirun_binding(const Launch& launch, int64_t threads);

// The same for all processes of a host, whatever their containers, and for no other host's.
std::string host_identity(const std::string& root = "");

}  // namespace weft
