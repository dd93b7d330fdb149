#pragma once
// Launch: reads from the environment which launcher started this process, and with which rank.
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace weft {

enum class Launcher : uint8_t {
  kNone,        // one process; ranks are threads
  kMpirun,      // Open MPI's mpirun
  kSlurm,       // srun with PMIx
  kSlurmRaw,    // srun without: SLURM_* alone
  kKubernetes,  // an indexed Job whose manifest gives WEFT_RANKS
  kTorchrun,    // its variables, whoever sets them
  kNodes,       // --nodes and --node-rank
  kForeign,     // a launcher of another MPI: its processes do not find each other here
};

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0, ranks = 1;
  int rank_here = 0, ranks_here = 1;  // among the processes of this host
  std::string foreign{};              // of kForeign: its name, and the variable that gives it away

  bool mpi() const { return launcher == Launcher::kMpirun || launcher == Launcher::kSlurm; }
  bool one_host() const { return ranks_here == ranks; }
};

using Environment = std::function<const char*(const char* name)>;

// The first launcher that matches, in the order of the enum; never kNodes. A single task of srun,
// torchrun or Kubernetes counts as kNone. Where srun started tasks on several nodes but does not
// say how many run on this one, ranks_here is an even share of them, and never all.
Launch detect_launch(const Environment& environment);
Launch detect_launch();  // reads this process's environment

// Slurm's short list of tasks per node: "2(x3),1" is {2, 2, 2, 1}. Empty where it is malformed.
std::vector<int> parse_tasks_per_node(const std::string& text);

// True for a name of the loopback: processes that meet there are on one host.
bool is_loopback(const std::string& host);

// "3 processes by mpirun"; "one process".
std::string to_string(const Launch& launch);

// The process of the mpirun, or of its daemon, that started this one, maybe by way of a script. 0
// where none is found.
pid_t mpirun_above();

// Error(kUsage) that says what to use in place of a launcher whose processes would each run the
// whole job.
void refuse_foreign_launcher(const Launch& launch);

}  // namespace weft
