#include "parallel/launch.h"

#include <cstdlib>

namespace weft {

Launch detect_launch(const Environment& environment) {
  const auto number = [&](const char* name, int otherwise) {
    const char* text = environment(name);
    return text ? std::atoi(text) : otherwise;
  };
  const auto launch = [&](Launcher launcher, const char* rank, const char* ranks,
                          const char* ranks_here) {
    const int size = number(ranks, 1);
    return Launch{launcher, number(rank, 0), size, number(ranks_here, size)};
  };
  if (environment("OMPI_COMM_WORLD_SIZE"))
    return launch(Launcher::kMpirun, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                  "OMPI_COMM_WORLD_LOCAL_SIZE");
  // The step's variable: a batch script has SLURM_NTASKS too, but is one process.
  if (number("SLURM_STEP_NUM_TASKS", 1) > 1)
    return launch(environment("PMIX_NAMESPACE") ? Launcher::kSlurm : Launcher::kSlurmRaw,
                  "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE");
  if (environment("MASTER_ADDR") && number("WORLD_SIZE", 1) > 1)
    return launch(Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE");
  return {};
}

Launch detect_launch() {
  return detect_launch([](const char* name) { return std::getenv(name); });
}

std::string to_string(const Launch& launch) {
  const std::string processes = std::to_string(launch.ranks) + " processes by ";
  switch (launch.launcher) {
    case Launcher::kNone:
      return "one process";
    case Launcher::kMpirun:
      return processes + "mpirun";
    case Launcher::kSlurm:
      return processes + "srun with PMIx";
    case Launcher::kSlurmRaw:
      return processes + "srun without PMIx";
    case Launcher::kTorchrun:
      return processes + "torchrun";
  }
  return {};
}

}  // namespace weft
