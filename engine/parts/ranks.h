#pragma once
// Ranks: the processes or threads that do a job together, and what they tell each other before it.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/parts/device_choice.h"
#include "kernels/check.h"
#include "parallel/bootstrap/cpu_share.h"
#include "parallel/communicator.h"
#include "parallel/transport/link.h"

namespace weft {

// The ranks of a job: the processes that a launcher started, else threads of this process.
struct Ranks {
  int count = 1;
  bool processes = false;
  int on_this_host = 1;
  int first = 0;  // the world rank of this process, or of its first thread
  // Processes that use GPUs: what every rank sees. Empty for threads, which see the same.
  std::vector<VisibleDevices> visible{};
  // Processes: the CPUs of this one, with the number of processes that share them. Empty for
  // threads, which share those of their process.
  std::vector<CpuPool> cpus{};
  bool mpi = false;                        // the processes are started by mpirun or srun
  std::shared_ptr<Transport> transport{};  // of processes
  bool speaks = true;                      // this process prints results
  std::string description = "one rank";    // the number of ranks and their launcher

  bool alone() const { return count == 1; }
};

// Runs work(world) as every rank of this process, over slow links where one is given. An error of
// one rank ends all of them.
void on_ranks(const Ranks& ranks, const std::function<void(Communicator&)>& work,
              const Link* link = nullptr);

// Returns the first rank's value in every process.
uint64_t broadcast_from_root(const Ranks& ranks, uint64_t value);
// An Error that every process of a job throws, so that all of them end and one of them tells it.
class AgreedError : public Error {
 public:
  using Error::Error;
};
// Calls `make` in the first process and returns its texts, or throws its Error, in every process.
std::vector<std::string> agreed_texts(const Ranks& ranks,
                                      const std::function<std::vector<std::string>()>& make);

// Returns the texts of all processes, by their rank, in every process.
std::vector<std::string> gathered_texts(const Ranks& ranks, const std::string& own);

}  // namespace weft
