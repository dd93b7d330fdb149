#pragma once
// Resolves the flags that say on which ranks and devices work runs, for the commands that share
// them.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "engine/parts/ranks.h"
#include "engine/planning/machine.h"
#include "kernels/attention.h"
#include "kernels/check.h"
#include "parallel/bootstrap/cpu_share.h"
#include "parallel/communicator.h"

namespace weft {

// The processes that a launcher started, else --ranks threads of this process.
// Error(kUsage) where --ranks or --transport contradicts the launcher, and where the build lacks
// what connects its processes.
Ranks ranks_of(const Flags& flags);

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

// The device of --device-name, else the one that --device names where it is present, else an H200;
// nullopt for a CPU.
std::optional<PlannedDevice> planned_device(const Flags& flags);
// The largest number of `ranks` that share such a device.
int planned_ranks_per_device(const Flags& flags, int ranks);
// --device-gflops, --device-gbs, --device-host-gbs, --link-gbit and --link-ms.
GivenRates given_rates(const Flags& flags);
// The devices of the ranks, for measurements and simulations.
RankMachine rank_machine(const Flags& flags, const Ranks& ranks);

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
