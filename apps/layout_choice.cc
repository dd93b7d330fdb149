#include "apps/layout_choice.h"

#include <algorithm>
#include <cstdio>

#include "kernels/transfer.h"

namespace weft {
namespace {

// A model with the rates that are given: both, or beside --device-name one in place of its own.
std::optional<DeviceModel> given_model(const Flags& flags, const DeviceModel* named) {
  const auto gflops = flags.real("device-gflops");
  const auto gbs = flags.real("device-gbs");
  if (!gflops && !gbs) return {};
  if (!named && (!gflops || !gbs))
    throw Error(ErrorKind::kUsage, flags.label(gflops ? "device-gflops" : "device-gbs") +
                                       " describes a device only together with " +
                                       (gflops ? "--device-gbs" : "--device-gflops"));
  DeviceModel device = named ? *named : DeviceModel{};
  for (OpFamily family : {OpFamily::kLinear, OpFamily::kAttention, OpFamily::kConv})
    if (gflops) device.flop_per_s[static_cast<size_t>(family)] = *gflops * 1e9;
  if (gbs) device.bytes_per_s.fill(*gbs * 1e9);
  return device;
}

SampledModel sampled(const Flags& flags, const OpenModel& model) {
  const WeightFormat weights = weight_format(flags);
  return {.dtype = compute_dtype(flags),
          .model = model.directory.expert(0).traits(),
          .vae = *model.directory.vae_model,
          .vae_dtype = vae_dtype(flags),
          .weights = weights == WeightFormat::kFile ? WeightFormat::kCompute : weights,
          .attention = wants_cuda(flags) ? attention_format(flags) : AttentionFormat::kCompute};
}

// The device of every rank, as a text that is equal where the device is the same.
std::vector<std::string> devices_of(const Flags& flags, const Ranks& ranks) {
  std::vector<std::string> devices;
  for (int rank = 0; rank < ranks.count; ++rank) {
    const Device device = device_of(flags, ranks, rank);
    devices.push_back(ranks.visible.empty() ? to_string(device)
                                            : ranks.visible[rank].identities[device.index]);
  }
  return devices;
}

// Every device is measured by the first of the ranks that share it, all devices at a time.
DeviceModel measured_gpus(Communicator& world, const Stream& stream,
                          const std::vector<std::string>& devices, const SampledModel& of) {
  const auto first = [&](int rank) { return std::ranges::find(devices, devices[rank]); };
  const auto place = [&](int rank) { return static_cast<int>(first(rank) - devices.begin()); };
  DeviceModel own;
  if (place(world.rank()) == world.rank()) own = measure_gpu(stream, of);
  const std::vector<DeviceModel> measured = gathered(world, own);
  std::vector<DeviceModel> shares;
  for (int rank = 0; rank < world.size(); ++rank)
    shares.push_back(share_of(measured[place(rank)],
                              static_cast<int>(std::ranges::count(devices, devices[rank]))));
  return slowest_of(shares);
}

}  // namespace

Link link_of(const Flags& flags) {
  return {.latency_s = flags.real("link-ms").value_or(0) * 1e-3,
          .bytes_per_s = flags.real("link-gbit").value_or(0) * 1e9 / 8};
}

MeasuredRanks measured_ranks(const Flags& flags, const Ranks& ranks, const OpenModel& model) {
  MeasuredRanks out{.link = link_of(flags), .gpu = {}};
  const std::optional<PlannedDevice> planned = planned_device(flags);
  const bool gpus = planned && planned->here,
             rates = gpus && !flags.real("device-gflops") && !flags.real("device-gbs"),
             links = ranks.count > 1 && (gpus || (ranks.processes && !planned)) &&
                     !flags.given("link-gbit") && !flags.given("link-ms");
  if (!rates && !links) return out;
  const std::vector<std::string> devices =
      gpus ? devices_of(flags, ranks) : std::vector<std::string>{};
  const SampledModel of = sampled(flags, model);
  const Link given = out.link;
  on_ranks(ranks, [&](Communicator& world) {
    Stream stream = gpus ? stream_on(device_of(flags, ranks, world.rank())) : Stream::cpu(1);
    std::optional<DeviceModel> gpu;
    if (rates) gpu = measured_gpus(world, stream, devices, of);
    const Link link = links ? measure_link(world, stream) : given;
    if (world.rank() == ranks.first) out = {link, gpu};
  });
  return out;
}

SimulatedMachine simulated_machine(const Flags& flags, const Ranks& ranks,
                                   const MeasuredRanks& measured, const OpenModel& model) {
  const DType dtype = compute_dtype(flags);
  SimulatedMachine machine{.planned = planned_device(flags),
                           .model = {},
                           .description = {},
                           .link = measured.link,
                           .threads = threads_per_rank(flags, ranks)};
  const bool named = machine.planned && machine.planned->named;
  if (machine.planned) machine.model = machine.planned->rates->model(dtype);
  const auto given = given_model(flags, named ? &machine.model : nullptr);
  std::string source;
  if (given) {
    machine.model = *given;
  } else if (measured.gpu) {
    machine.model = *measured.gpu;
    source = " (measured here)";
  } else if (machine.planned) {
    source = named ? " (expected of its datasheet)"
                   : std::string(" (assumed: an NVIDIA ") + machine.planned->rates->name +
                         "; --device-name describes another)";
  } else {
    const int threads = machine.threads, here = threads_of_rank(cpu_pools()).threads;
    machine.model =
        measure_device(std::clamp(here / threads, 1, ranks.count), threads, sampled(flags, model));
    source =
        " (measured here, " + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
  }
  machine.description = to_string(machine.model) + source;
  if (!machine.planned) {
    machine.ranks_per_device = ranks.on_this_host;  // they share the disk
    machine.upload = {1, kAssumedDiskGbs * 1e9, "assumed", true};
    if (flags.integer("resident-layers") || flags.real("device-host-gbs") ||
        flags.text("mode") == "memory")
      machine.upload = read_forecast(flags, 1, model.directory.expert(0), *model.expert_files[0],
                                     {.dtype = dtype, .weights = weight_format(flags)});
    return machine;
  }
  machine.description = machine.planned->description() + ", " + machine.description;
  machine.ranks_per_device = planned_ranks_per_device(flags, ranks.count);
  std::optional<Stream> here;
  if (machine.planned->here && flags.integer("resident-layers"))
    here = stream_on(*machine.planned->here);
  machine.upload = upload_forecast(flags, 1, here ? &*here : nullptr);
  if (!named) return machine;
  if (!flags.real("device-host-gbs"))
    machine.upload = {1, machine.planned->rates->host_gbs * 1e9, "assumed"};
  const Link own = machine.planned->rates->link();
  if (!flags.given("link-ms")) machine.link.latency_s = own.latency_s;
  if (!flags.given("link-gbit")) machine.link.bytes_per_s = own.bytes_per_s;
  return machine;
}

PlannedJob planned_job(const Generator& generator, GeneratorOptions options, const Request& request,
                       const SimulatedMachine& machine) {
  options.device = {};
  options.threads = 1;
  options.ops = &metered_ops();
  if (machine.planned)
    options.planned = machine.planned->traits;
  else if (!options.memory_limit)
    options.memory_limit = UINT64_MAX;
  return {.model = generator.model(),
          .options = options,
          .request = request,
          .machine = {.device = machine.model,
                      .link = machine.link,
                      .upload_bytes_per_s = machine.upload.bytes_per_s / machine.ranks_per_device}};
}

bool chooses_layout(const std::string& layout) {
  return layout.empty() || layout.substr(0, layout.find(',')) == "auto";
}

bool chooses_layout(const std::string& layout, std::span<const Layout> layouts) {
  const auto open = [&](int Layout::*stage) {
    return with_stage_ranks(layouts.front(), stage).size() > 1;
  };
  return chooses_layout(layout) &&
         (layouts.size() > 1 || open(&Layout::text_ranks) || open(&Layout::vae_ranks));
}

std::string to_string(const LayoutChoice& choice) {
  std::string text;
  for (const Forecast& one : choice.best) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.4g s", one.seconds);
    const char* before = text.empty() ? "" : text.find("next") == text.npos ? "; next: " : ", ";
    text += before + (text.empty() ? "" : to_string(one.layout) + " ") + seconds;
  }
  if (!choice.best.front().fits()) return text + "; no layout fits in memory";
  if (choice.too_large == 0) return text;
  return text + "; " + std::to_string(choice.too_large) + " faster than these do not fit in memory";
}

Json to_json(const LayoutChoice& choice) {
  Json list = Json::array();
  for (const Forecast& one : choice.best)
    list.push_back({{"layout", to_string(one.layout)},
                    {"seconds", one.seconds},
                    {"high_water_bytes", one.high_water()}});
  return list;
}

Json to_json(const SimulatedMachine& machine) {
  return {{"rates", machine.description}, {"link", to_string(machine.link)}};
}

}  // namespace weft
