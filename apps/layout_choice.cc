#include "apps/layout_choice.h"

#include <algorithm>
#include <cstdio>

#include "apps/calibrate.h"
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

}  // namespace

Link link_of(const Flags& flags) {
  return {.latency_s = flags.real("link-ms").value_or(0) * 1e-3,
          .bytes_per_s = flags.real("link-gbit").value_or(0) * 1e9 / 8};
}

Link link_between(const Flags& flags, const Ranks& ranks) {
  Link link = link_of(flags);
  if (!ranks.processes || flags.given("link-gbit") || flags.given("link-ms")) return link;
  on_ranks(ranks, [&](Communicator& world) { link = measure_link(world); });
  return link;
}

SimulatedMachine simulated_machine(const Flags& flags, const Ranks& ranks, const Link& link,
                                   const OpenModel& model) {
  const DType dtype = compute_dtype(flags);
  SimulatedMachine machine{.planned = planned_device(flags),
                           .model = {},
                           .description = {},
                           .link = link,
                           .threads = threads_per_rank(flags, ranks)};
  const bool named = machine.planned && machine.planned->named;
  if (machine.planned) machine.model = machine.planned->rates->model(dtype);
  const auto given = given_model(flags, named ? &machine.model : nullptr);
  std::string source;
  if (given) {
    machine.model = *given;
  } else if (machine.planned) {
    source = named ? " (expected of its datasheet)"
                   : std::string(" (assumed: an NVIDIA ") + machine.planned->rates->name +
                         "; --device-name describes another)";
  } else {
    const int threads = machine.threads, here = threads_of_rank(cpu_pools()).threads;
    machine.model = measure_device(std::clamp(here / threads, 1, ranks.count), threads,
                                   {.dtype = dtype,
                                    .model = model.directory.expert(0).traits(),
                                    .vae = *model.directory.vae_model,
                                    .vae_dtype = vae_dtype(flags)});
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

}  // namespace weft
