#include "apps/device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "apps/command_line/printable.h"
#include "apps/command_line/process_place.h"
#include "kernels/cuda/device.h"
#include "kernels/ops.h"
#include "kernels/transfer.h"
#include "parallel/host/addresses.h"
#include "parallel/transport/nccl.h"

namespace weft {

namespace {

// The identities of the devices that this process sees.
std::vector<std::string> visible_identities() {
  const std::string host = host_identity();
  const char* listed = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<std::string> identities;
  for (int index = 0, count = cuda_device_count(); index < count; ++index) {
    const CudaDeviceNames names = cuda_device_names(index);
    identities.push_back(device_identity({.uuid = names.uuid,
                                          .pci = names.pci,
                                          .host = host,
                                          .visible_list = listed ? listed : "",
                                          .index = index}));
  }
  return identities;
}

// Gathers on every rank the devices that each rank sees.
std::vector<VisibleDevices> gather_devices(const Ranks& ranks, int rank_here) {
  // "RANK_HERE identity\nidentity\n..." per rank
  std::string own = std::to_string(rank_here) + "\n";
  for (const std::string& identity : visible_identities()) own += identity + "\n";
  std::vector<VisibleDevices> all;
  for (const std::string& text : gathered_texts(ranks, own)) {
    std::vector<std::string> lines = split(text, '\n');
    all.push_back({.rank_here = std::atoi(lines.front().c_str()), .identities = {}});
    all.back().identities.assign(lines.begin() + 1, lines.end());
  }
  return all;
}

// The CPUs of this process, with the number of the job's processes that share them.
std::vector<CpuPool> shared_cpus(const Ranks& ranks) {
  std::vector<CpuPool> pools = cpu_pools();
  count_processes(pools, gathered_texts(ranks, pool_keys(pools)));
  return pools;
}

// --heartbeat-timeout. Heartbeats come every half second, so less than 2 s would end sound jobs.
double heartbeat_timeout(const Flags& flags) {
  const double seconds =
      flags.real("heartbeat-timeout").value_or(MessageOptions{}.heartbeat_timeout_s);
  if (seconds > 0 && seconds < 2)
    throw Error(ErrorKind::kUsage, flags.label("heartbeat-timeout") + " is " +
                                       flags.text("heartbeat-timeout") +
                                       ", legal: 0 (never), 2 ... 86400 seconds; nearest: 2");
  return seconds;
}

// --interface. The first rank listens there, so its host must have it.
std::string listening_interfaces(const Flags& flags, int rank) {
  const std::string names = flags.text("interface");
  if (rank == 0 && flags.given("interface"))
    check_interfaces(flags.label("interface"), names, host_addresses());
  return names;
}

// The number of cuda:N; -1: cuda alone.
int cuda_index(const Flags& flags) {
  const std::string device = flags.text("device"),
                    number = device.substr(std::min<size_t>(device.size(), 5));
  const bool digits = !number.empty() && number.size() <= 3 &&
                      number.find_first_not_of("0123456789") == std::string::npos;
  if (device == "cuda") return -1;
  if (!device.starts_with("cuda:") || !digits || std::atoi(number.c_str()) > 127)
    throw Error(ErrorKind::kUsage, flags.label("device") + " is '" + device +
                                       "', legal: auto, cpu, cuda, cuda:N (N 0 ... 127)");
  return std::atoi(number.c_str());
}

std::vector<DeviceChoice> device_choices(const Flags& flags, const Ranks& ranks) {
  if (!ranks.visible.empty())
    return choose_devices(ranks.visible, cuda_index(flags), cuda_absence());
  std::vector<VisibleDevices> visible;
  for (int rank = 0; rank < ranks.count; ++rank)
    visible.push_back({.rank_here = rank, .identities = visible_identities()});
  return choose_devices(visible, cuda_index(flags), cuda_absence());
}

// The legal values of --transport beside nccl.
std::string without_nccl(const Ranks& ranks) {
  return std::string("legal here: auto, ") + (ranks.mpi ? "mpi, ucx" : "ucx");
}

// Lets the GPUs of processes exchange by NCCL, as --transport says: auto does where each process
// has a GPU of its own.
void add_nccl(const Flags& flags, Ranks& ranks) {
  const std::string wanted = flags.text("transport");
  const bool named = wanted == "nccl";
  const auto refuse = [&](const std::string& why) {
    if (named)
      throw Error(ErrorKind::kUsage,
                  flags.label("transport") + " is nccl, " + why + "; " + without_nccl(ranks));
  };
  if (!named && wanted != "auto" && !wanted.empty()) return;
  if (!wants_cuda(flags)) return refuse("which moves messages between GPUs, but --device is cpu");
  if (!nccl_built())
    return refuse("which this build does not have: it needs libnccl-dev and -DWEFT_CUDA=ON");
  const std::vector<DeviceChoice> choices = device_choices(flags, ranks);
  if (most_ranks_per_device(choices) > 1)
    return refuse("which refuses ranks that share a GPU, and " +
                  std::to_string(most_ranks_per_device(choices)) + " ranks have the same");
  const auto index = static_cast<int8_t>(choices[ranks.first].index);
  ranks.transport = make_nccl(ranks.transport, {Device::Kind::kCuda, index},
                              flags.on("nccl-sums") ? NcclSums::kLibrary : NcclSums::kOurs);
  ranks.description += ", over NCCL";
}

// The ranks of a job, with what connects its processes.
Ranks ranks_started(const Flags& flags) {
  heartbeat_timeout(flags);  // refused without mpirun, too
  Ranks ranks;
  ranks.count = static_cast<int>(flags.integer("ranks").value_or(1));
  ranks.on_this_host = ranks.count;
  const std::optional<ProcessPlace> place = process_place(flags);
  const std::string interfaces = listening_interfaces(flags, place ? place->launch.rank : 0);
  if (!place) {
    if (!ranks.alone()) ranks.description = std::to_string(ranks.count) + " threads of one process";
    return ranks;
  }
  const Launch& launch = place->launch;
  if (flags.given("ranks") && ranks.count != launch.ranks)
    throw Error(ErrorKind::kUsage, flags.label("ranks") + " is " + std::to_string(ranks.count) +
                                       ", but the job is " + to_string(launch));
  const MessageOptions options{.warning =
                                   [](const std::string& line) {
                                     std::fprintf(stderr, "weft: warning: %s\n",
                                                  printable(line).c_str());
                                   },
                               .stuck =
                                   [](const std::string& line) {
                                     std::fprintf(stderr, "weft: %s\n", printable(line).c_str());
                                     std::_Exit(static_cast<int>(ErrorKind::kComm));
                                   },
                               .heartbeat_timeout_s = heartbeat_timeout(flags),
                               .interfaces = interfaces};
  lift_mpirun_binding(launch, flags.integer("threads").value_or(0));
  const std::shared_ptr<Transport> transport = process_transport(options, *place);
  ranks = {.count = transport->size(),
           .processes = true,
           .on_this_host = launch.ranks_here,
           .first = transport->rank(),
           .mpi = place->network == Network::kMpi,
           .transport = transport,
           .speaks = transport->rank() == 0,
           .description = to_string(launch)};
  ranks.cpus = shared_cpus(ranks);
  if (wants_cuda(flags)) ranks.visible = gather_devices(ranks, launch.rank_here);
  if (!ranks.alone()) add_nccl(flags, ranks);
  return ranks;
}

}  // namespace

Ranks ranks_of(const Flags& flags) {
  Ranks ranks = ranks_started(flags);
  if (flags.on("nccl-sums") && !(ranks.transport && ranks.transport->enqueues()))
    throw Error(ErrorKind::kUsage, flags.label("nccl-sums") +
                                       " needs processes whose GPUs exchange by NCCL; the job is " +
                                       ranks.description + "; legal here: no --nccl-sums");
  return ranks;
}

ThreadCount thread_count(const Flags& flags, const Ranks& ranks) {
  if (const auto given = flags.integer("threads"))
    return {static_cast<int>(*given), flags.label("threads")};
  return ranks.processes ? threads_of_rank(ranks.cpus) : threads_of_rank(cpu_pools(), ranks.count);
}

int threads_per_rank(const Flags& flags, const Ranks& ranks) {
  return thread_count(flags, ranks).threads;
}

bool wants_cuda(const Flags& flags) {
  const std::string device = flags.text("device");
  if (device == "cpu" || (device.empty() && !flags.given("device")))
    return false;  // or no such flag
  cuda_index(flags);
  return true;
}

Device device_of(const Flags& flags, const Ranks& ranks, int rank) {
  if (!wants_cuda(flags)) return {};
  return {Device::Kind::kCuda, static_cast<int8_t>(device_choices(flags, ranks)[rank].index)};
}

Device device_of(const Flags& flags, const Ranks& ranks) {
  return device_of(flags, ranks, ranks.first);
}

int ranks_per_device(const Flags& flags, const Ranks& ranks) {
  if (!wants_cuda(flags)) return ranks.on_this_host;
  return most_ranks_per_device(device_choices(flags, ranks));
}

namespace {
// 0 where the build has no CUDA backend.
int cuda_devices_here() { return cuda_versions().empty() ? 0 : cuda_device_count(); }
}  // namespace

std::optional<PlannedDevice> planned_device(const Flags& flags) {
  if (!wants_cuda(flags)) return {};
  if (const std::string name = flags.text("device-name"); !name.empty()) {
    const KnownDevice* named = find_known_device(name);
    if (!named)
      throw Error(ErrorKind::kUsage, flags.label("device-name") + " is '" + name +
                                         "', legal: " + known_device_names());
    return PlannedDevice{.traits = named->traits(), .rates = named, .here = {}, .named = true};
  }
  const int index = std::max(0, cuda_index(flags));
  if (index >= cuda_devices_here())
    return PlannedDevice{
        .traits = assumed_device().traits(), .rates = &assumed_device(), .here = {}};
  const Device device{Device::Kind::kCuda, static_cast<int8_t>(index)};
  const DeviceTraits traits = device_traits(device);
  const KnownDevice* known = find_known_device(traits.name);
  return PlannedDevice{
      .traits = traits, .rates = known ? known : &assumed_device(), .here = device};
}

int planned_ranks_per_device(const Flags& flags, int ranks) {
  if (cuda_index(flags) >= 0) return ranks;
  const int count = flags.text("device-name").empty() ? cuda_devices_here() : 0;
  return count > 0 ? (ranks + count - 1) / count : 1;
}

GivenRates given_rates(const Flags& flags) {
  const auto given = [&](const char* flag) {
    return flags.given(flag) ? flags.real(flag) : std::nullopt;
  };
  return {.gflops = given("device-gflops"),
          .gbs = given("device-gbs"),
          .host_gbs = given("device-host-gbs"),
          .link_gbit = given("link-gbit"),
          .link_ms = given("link-ms")};
}

RankMachine rank_machine(const Flags& flags, const Ranks& ranks) {
  RankMachine machine{.planned = planned_device(flags), .given = given_rates(flags)};
  machine.options.dtype = compute_dtype(flags);
  machine.options.vae_dtype = vae_dtype(flags);
  machine.options.weights = weight_format(flags);
  if (wants_cuda(flags)) machine.options.attention = attention_format(flags);
  machine.options.threads = threads_per_rank(flags, ranks);
  machine.options.resident_blocks = static_cast<int>(flags.integer("resident-layers").value_or(0));
  machine.streams_weights = machine.options.resident_blocks > 0 || flags.text("mode") == "memory";
  if (!machine.planned) return machine;
  machine.planned_ranks_per_device = planned_ranks_per_device(flags, ranks.count);
  if (machine.planned->here)
    for (int rank = 0; rank < ranks.count; ++rank)
      machine.devices.push_back(device_of(flags, ranks, rank));
  return machine;
}

std::string device_description(Device device) {
  if (device.kind == Device::Kind::kCpu) return "cpu, " + cpu_isa();
  return to_string(device) + ", " + cuda_device_description(device.index) + ", " + cuda_versions();
}

Stream stream_of(const Flags& flags, const Ops* ops) {
  return stream_on(device_of(flags), threads_per_rank(flags),
                   flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast, ops);
}

namespace {

WeightFormat weight_format(const Flags& flags, const char* flag) {
  const std::string weights = flags.text(flag);
  if (weights == "compute" || weights.empty()) return WeightFormat::kCompute;
  if (weights == "file" && wants_cuda(flags))
    throw Error(ErrorKind::kUsage, flags.label(flag) +
                                       " is file, which needs --device cpu: no kernel expands "
                                       "stored weights on a GPU; legal here: compute, int8" +
                                       (std::string(flag) == "weights" ? ", fp8, fp8-tensor" : ""));
  if (weights == "file") return WeightFormat::kFile;
  const bool fp8 = weights.starts_with("fp8");
  if (wants_cuda(flags) && fp8)
    return weights == "fp8" ? WeightFormat::kFp8 : WeightFormat::kFp8Tensor;
  if (wants_cuda(flags)) return WeightFormat::kInt8;
  const std::string legal = cpu_has_int8() ? "compute, file, int8" : "compute, file";
  if (fp8 || !cpu_has_int8())
    throw Error(ErrorKind::kUsage, flags.label(flag) + " is " + weights + ", which needs " +
                                       (fp8 ? "--device cuda" : "AVX512-VNNI or AMX") +
                                       "; this is " + cpu_isa() + ", legal here: " + legal);
  return WeightFormat::kInt8;
}

}  // namespace

WeightFormat weight_format(const Flags& flags) { return weight_format(flags, "weights"); }

WeightFormat text_weight_format(const Flags& flags) {
  return weight_format(flags, "text-encoder-weights");
}

AttentionFormat attention_format(const Flags& flags) {
  if (flags.text("attention") == "compute") return AttentionFormat::kCompute;
  if (!wants_cuda(flags))
    throw Error(ErrorKind::kUsage, flags.label("attention") +
                                       " is fp8, which needs --device cuda; this is " + cpu_isa() +
                                       ", legal here: compute");
  return AttentionFormat::kFp8;
}

void keep_device_plans() {
  const auto folder = [](const char* name) {
    const char* value = std::getenv(name);
    return value && *value == '/' ? std::string(value) : "";
  };
  const std::string cache = folder("XDG_CACHE_HOME"), home = folder("HOME");
  if (cache.empty() && home.empty()) return;
  keep_cuda_plans((cache.empty() ? home + "/.cache" : cache) + "/weft/cudnn");
}

void set_attention_path(const Flags& flags, const std::string& path) {
  if (!wants_cuda(flags)) {
    if (path == "auto") return;
    throw Error(ErrorKind::kUsage, flags.label("attention-path") + " is " + path +
                                       ", which needs --device cuda; legal here: auto");
  }
  for (const AttentionPath known :
       {AttentionPath::kAuto, AttentionPath::kLibrary, AttentionPath::kWgmma, AttentionPath::kMma})
    if (path == to_string(known)) set_cuda_attention_path(known);
}

DType compute_dtype(const Flags& flags) {
  const std::string dtype = flags.text("dtype");
  if (dtype == "auto") return wants_cuda(flags) || cpu_has_bf16() ? DType::kBF16 : DType::kF32;
  return dtype == "bf16" ? DType::kBF16 : DType::kF32;
}

DType vae_dtype(const Flags& flags) {
  const std::string dtype = flags.text("vae-dtype");
  if (dtype != "auto") return dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const bool fast = cpu_has_bf16() && compute_dtype(flags) == DType::kBF16;
  return wants_cuda(flags) || fast ? DType::kBF16 : DType::kF32;
}

}  // namespace weft
