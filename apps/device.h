#pragma once
// Resolves the flags that say on which ranks and devices work runs, for the commands that share
// them.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/device_choice.h"
#include "engine/planning/known_devices.h"
#include "kernels/attention.h"
#include "kernels/check.h"
#include "parallel/bootstrap/cpu_share.h"
#include "parallel/communicator.h"
#include "parallel/transport/link.h"

namespace weft {

// The ranks of a job: the processes that a launcher started, else --ranks threads of this process.
struct Ranks {
  int count = 1;
  bool processes = false;
  int on_this_host = 1;
  int first = 0;  // the world rank of this process, or of its first thread
  // Processes with --device cuda: what every rank sees. Empty for threads, which see the same.
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
// Error(kUsage) where --ranks or --transport contradicts the launcher, and where the build lacks
// what connects its processes.
Ranks ranks_of(const Flags& flags);

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

// The threads of each rank: --threads, or its share of the CPUs that the job was given.
ThreadCount thread_count(const Flags& flags, const Ranks& ranks = {});
int threads_per_rank(const Flags& flags, const Ranks& ranks = {});

// The device that --device gives a rank (choose_devices), or this process's first rank.
// Error(kUsage) that names the build option or the missing device.
Device device_of(const Flags& flags, const Ranks& ranks, int rank);
Device device_of(const Flags& flags, const Ranks& ranks = {});
bool wants_cuda(const Flags& flags);  // true for --device cuda, even where no GPU is present
// The largest number of ranks that share one device's memory.
int ranks_per_device(const Flags& flags, const Ranks& ranks);
// "cuda:0, NVIDIA H200, ...", or a CPU's instruction set.
std::string device_description(Device device);
// A stream on device_of(), with the threads of one rank and --deterministic.
Stream stream_of(const Flags& flags, const Ops* ops = nullptr);

// The device that a plan is made for: that of --device-name, else the one that --device names where
// it is present, else an H200; nullopt for a CPU.
struct PlannedDevice {
  DeviceTraits traits;
  const KnownDevice* rates;  // of the same name where it is known, else an H200's
  std::optional<Device> here;
  bool named = false;  // by --device-name

  std::string description() const;  // "NVIDIA H200 (assumed: no such device is here)"
};
std::optional<PlannedDevice> planned_device(const Flags& flags);
// The largest number of `ranks` that share such a device.
int planned_ranks_per_device(const Flags& flags, int ranks);

// --weights. Error(kUsage) for int8 where the CPU has no fast 8-bit multiplication, for fp8 on a
// CPU, and for file on a GPU.
WeightFormat weight_format(const Flags& flags);
WeightFormat text_weight_format(const Flags& flags);  // --text-encoder-weights

// The attention format that --attention asks for. Error(kUsage) for fp8 on a CPU.
AttentionFormat attention_format(const Flags& flags);

// Lets CUDA keep the code that it compiles in the user's cache folder: $XDG_CACHE_HOME or ~/.cache,
// then weft/cudnn.
void keep_device_plans();

// Applies --attention-path to streams that are made afterwards. Error(kUsage) on a CPU.
void set_attention_path(const Flags& flags, const std::string& path);

// --dtype with auto resolved: bf16 where the device multiplies it in hardware, else f32.
DType compute_dtype(const Flags& flags);
// --vae-dtype with auto resolved: bf16 on a GPU, and with --dtype bf16 on a CPU that multiplies it.
DType vae_dtype(const Flags& flags);

}  // namespace weft
