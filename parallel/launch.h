#pragma once
// Launch: who started this process, and as which of how many, by the environment alone.
#include <functional>
#include <string>

namespace weft {

enum class Launcher : uint8_t {
  kNone,      // one process; ranks are threads
  kMpirun,    // Open MPI's mpirun
  kSlurm,     // srun with PMIx
  kSlurmRaw,  // srun without: the tasks cannot find each other
  kTorchrun,  // recognised to say so
};

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0, ranks = 1, ranks_here = 1;

  bool mpi() const { return launcher == Launcher::kMpirun || launcher == Launcher::kSlurm; }
};

using Environment = std::function<const char*(const char* name)>;

// The first that matches, in the order of Launcher. One torchrun or srun task is no job.
Launch detect_launch(const Environment& environment);
Launch detect_launch();  // of this process

// "3 processes by mpirun"; "one process".
std::string to_string(const Launch& launch);

}  // namespace weft
