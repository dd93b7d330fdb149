#include "parallel/bootstrap/launch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "kernels/check.h"

namespace weft {

std::vector<int> parse_tasks_per_node(const std::string& text) {
  constexpr int kMost = 1 << 20;
  std::vector<int> tasks;
  const char *at = text.data(), *const end = at + text.size();
  const auto number = [&](int& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc() && value > 0 && value <= kMost;
  };
  const auto skip = [&](std::string_view what) {
    if (!std::string_view(at, end - at).starts_with(what)) return false;
    at += what.size();
    return true;
  };
  do {
    int count = 0, nodes = 1;
    if (!number(count) || (skip("(x") && (!number(nodes) || !skip(")")))) return {};
    if (nodes > kMost - static_cast<int>(tasks.size())) return {};
    tasks.insert(tasks.end(), nodes, count);
  } while (skip(","));
  return at == end ? tasks : std::vector<int>();
}

namespace {

int number(const Environment& environment, const char* name, int otherwise) {
  const char* text = environment(name);
  return text ? std::atoi(text) : otherwise;
}

// The number of a step's tasks on this node.
int slurm_tasks_here(const Environment& environment, int tasks) {
  const int node = number(environment, "SLURM_NODEID", 0);
  int nodes = number(environment, "SLURM_STEP_NUM_NODES", 0);
  // The second list may be that of the whole allocation, so it must agree with the step.
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const char* text = environment(name);
    const std::vector<int> list = parse_tasks_per_node(text ? text : "");
    if (std::accumulate(list.begin(), list.end(), int64_t{0}) != tasks || node < 0 ||
        node >= static_cast<int>(list.size()))
      continue;
    if (nodes == 0 || nodes == static_cast<int>(list.size())) return list[node];
  }
  if (nodes == 0) nodes = number(environment, "SLURM_NNODES", 1);
  return nodes > 1 ? (tasks + nodes - 1) / nodes : tasks;
}

// The variables of a launcher of another MPI; null where it has none.
struct ForeignLauncher {
  const char *name, *rank, *size;
};
constexpr ForeignLauncher kForeignLaunchers[] = {
    {"PALS (mpiexec of HPE Cray)", "PALS_RANKID", "PMI_SIZE"},
    {"aprun", "ALPS_APP_PE", nullptr},
    {"mpirun of MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
    {"mpiexec of MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"},
    {"mpiexec of MPICH or Intel MPI", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"mpiexec of MPICH or Intel MPI", nullptr, "PMI_SIZE"},
    {"mpiexec of MPICH or Intel MPI", nullptr, "MPI_LOCALNRANKS"},
};

// The first of them that started this process as one of several. Where none tells how many there
// are, they count as several; srun, which sets variables of PALS on some machines, tells it.
Launch foreign_launch(const Environment& environment) {
  for (const auto& [name, rank_name, size_name] : kForeignLaunchers) {
    const bool sized = size_name && environment(size_name);
    if (rank_name ? !environment(rank_name) : !sized) continue;
    if (!sized && environment("SLURM_STEP_NUM_TASKS")) continue;
    const int rank = rank_name ? std::max(0, number(environment, rank_name, 0)) : 0;
    const int ranks = sized ? number(environment, size_name, 1) : std::max(2, rank + 1);
    if (ranks <= 1) continue;
    const char* telltale = sized ? size_name : rank_name;
    return {.launcher = Launcher::kForeign,
            .rank = rank,
            .ranks = ranks,
            .ranks_here = ranks,
            .foreign = std::string(name) + " (" + telltale + " is " + environment(telltale) + ")"};
  }
  return {};
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.starts_with("127.") || host == "::1";
}

Launch detect_launch(const Environment& environment) {
  const auto of = [&](const char* name, int otherwise) {
    return number(environment, name, otherwise);
  };
  if (environment("OMPI_COMM_WORLD_SIZE")) {
    const int ranks = of("OMPI_COMM_WORLD_SIZE", 1);
    return {.launcher = Launcher::kMpirun,
            .rank = of("OMPI_COMM_WORLD_RANK", 0),
            .ranks = ranks,
            .rank_here = of("OMPI_COMM_WORLD_LOCAL_RANK", 0),
            .ranks_here = of("OMPI_COMM_WORLD_LOCAL_SIZE", ranks)};
  }
  // Another MPI's launcher may have started its daemons by srun, whose variables remain.
  const Launch foreign = foreign_launch(environment);
  // The step's variable: a batch script has SLURM_NTASKS too, but is one process.
  if (const int ranks = of("SLURM_STEP_NUM_TASKS", 1);
      ranks > 1 && (foreign.ranks == 1 || foreign.ranks == ranks))
    return {.launcher = environment("PMIX_NAMESPACE") ? Launcher::kSlurm : Launcher::kSlurmRaw,
            .rank = of("SLURM_PROCID", 0),
            .ranks = ranks,
            .rank_here = of("SLURM_LOCALID", 0),
            .ranks_here = slurm_tasks_here(environment, ranks)};
  const char* index = environment("JOB_COMPLETION_INDEX");
  if (const int ranks = of("WEFT_RANKS", 1); index && ranks > 1)  // a pod has one process
    return {.launcher = Launcher::kKubernetes, .rank = std::atoi(index), .ranks = ranks};
  const char* host = environment("MASTER_ADDR");
  if (const int ranks = of("WORLD_SIZE", 1); host && ranks > 1) {
    // A user who sets the variables by hand may leave out the local ones.
    const bool here = is_loopback(host);
    return {.launcher = Launcher::kTorchrun,
            .rank = of("RANK", 0),
            .ranks = ranks,
            .rank_here = of("LOCAL_RANK", here ? of("RANK", 0) : 0),
            .ranks_here = of("LOCAL_WORLD_SIZE", here ? ranks : 1)};
  }
  return foreign;
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
    case Launcher::kKubernetes:
      return processes + "a Kubernetes indexed Job";
    case Launcher::kTorchrun:
      return processes + "torchrun";
    case Launcher::kNodes:
      return processes + "--nodes";
    case Launcher::kForeign:
      return "one of several processes by " + launch.foreign;
  }
  return {};
}

pid_t mpirun_above() {
  constexpr std::array<std::string_view, 7> kNames{"mpirun",  "mpiexec", "orterun", "orted",
                                                   "prterun", "prted",   "prte"};
  for (pid_t process = getppid(); process > 1;) {
    const std::string folder = "/proc/" + std::to_string(process);
    std::string name;
    std::getline(std::ifstream(folder + "/comm"), name);
    if (std::ranges::count(kNames, name) > 0) return process;
    std::ifstream status(folder + "/status");
    process = 0;
    for (std::string word; process == 0 && status >> word;)
      if (word == "PPid:") status >> process;
  }
  return 0;
}

void refuse_foreign_launcher(const Launch& launch) {
  if (launch.launcher != Launcher::kForeign) return;
  const std::string variable = launch.foreign.substr(launch.foreign.rfind('(') + 1);
  throw Error(ErrorKind::kUsage,
              "started as " + to_string(launch) +
                  ", which cannot find each other, so that each would run the whole job; legal: "
                  "mpirun of Open MPI, srun, torchrun, or one process with --ranks N. A "
                  "process that is meant to be alone needs env -u " +
                  variable.substr(0, variable.find(' ')));
}

}  // namespace weft
