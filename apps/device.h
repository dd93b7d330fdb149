#pragma once
// The flags that say where and how work runs, resolved for the commands that share them.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "kernels/attention.h"
#include "kernels/device_plan.h"
#include "parallel/communicator.h"
#include "parallel/link.h"

namespace weft {

// The ranks of a job: the processes that mpirun started, else --ranks threads of this process.
struct Ranks {
  int count = 1;
  bool processes = false;
  int on_this_host = 1;
  bool speaks = true;              // this process prints results
  std::string words = "one rank";  // what the ranks are and who started them

  bool alone() const { return count == 1; }
};
// Error(kUsage) where --ranks contradicts mpirun, and where the launcher is none that connects its
// processes.
Ranks ranks_of(const Flags& flags);

// Lifts the binding that mpirun gives a process of few ranks (one core, whatever its threads).
void use_all_cpus();

// Runs work(world) as every rank of this process, over slow wires where a link is given. An error
// of one rank ends all of them.
void on_ranks(const Ranks& ranks, const std::function<void(Communicator&)>& work,
              const Link* link = nullptr);

// The first rank's value, in every process.
uint64_t agreed(const Ranks& ranks, uint64_t value);
// What `make` gives in the first process, in every process, its Error too.
std::vector<std::string> agreed_texts(const Ranks& ranks,
                                      const std::function<std::vector<std::string>()>& make);

// --threads of each rank: given, or the machine's shared among its ranks; 0 = all of them.
int threads_per_rank(const Flags& flags, const Ranks& ranks);

// --device. cuda:N is that one for all ranks; cuda gives rank r of a machine its device r, in turns
// where there are fewer. Error(kUsage) naming the build option, the missing device or what is
// legal.
Device device_of(const Flags& flags, const Ranks& ranks = {}, int rank = 0);
bool wants_cuda(const Flags& flags);  // whether there is such a device or not
// How many ranks share a device's memory, at most.
int device_sharers(const Flags& flags, const Ranks& ranks);
// "cuda:0 NVIDIA H200, ..."; the instructions of a CPU.
std::string device_words(Device device);
// On device_of(), with --threads of the host and --deterministic.
Stream stream_of(const Flags& flags, const Ops* ops = nullptr);

// What --device asks a plan for: the device that is here, else an H200; nullopt: a CPU.
struct PlannedDevice {
  DeviceTraits traits;
  std::optional<Device> here;

  std::string words() const;  // "NVIDIA H200 (assumed: no such device is here)"
};
std::optional<PlannedDevice> planned_device(const Flags& flags);
// How many of `ranks` share such a device, at most.
int planned_sharers(const Flags& flags, int ranks);

// --weights. Error(kUsage) for int8 where the CPU has no fast products of 8-bit numbers, and for
// fp8 on a CPU.
WeightFormat weight_format(const Flags& flags);

// --attention. Error(kUsage) for fp8 on a CPU.
AttentionFormat attention_format(const Flags& flags);

// --dtype with auto resolved: bf16 where the device multiplies it in hardware, else f32.
DType compute_dtype(const Flags& flags);

}  // namespace weft
