#pragma once
// Launch: reads from the environment which launcher started this process, and with which rank.
#include <functional>
#include <string>

namespace weft {

enum class Launcher : uint8_t {
  kNone,      // one process; ranks are threads
  kMpirun,    // Open MPI's mpirun
  kSlurm,     // srun with PMIx
  kSlurmRaw,  // srun without: the tasks cannot find each other
  kTorchrun,  // recognised only to refuse it with a helpful error
};

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0, ranks = 1, ranks_here = 1;

  bool mpi() const { return launcher == Launcher::kMpirun || launcher == Launcher::kSlurm; }
};

using Environment = std::function<const char*(const char* name)>;

// The first launcher that matches, in the order of the enum. A single torchrun or srun task counts
// as kNone.
Launch detect_launch(const Environment& environment);
Launch detect_launch();  // reads this process's environment

// "3 processes by mpirun"; "one process".
std::string to_string(const Launch& launch);

}  // namespace weft
