#include "engine/planning/machine.h"

#include <algorithm>
#include <cstdio>

#include "engine/conditions/prompt_rows.h"
#include "engine/job/job_spec.h"
#include "engine/planning/calibrate.h"
#include "kernels/transfer.h"
#include "parallel/bootstrap/cpu_share.h"

namespace weft {
namespace {

// A model with the rates that are given: both, or beside a named device one in place of its own.
std::optional<DeviceModel> given_model(const GivenRates& given, const DeviceModel* named) {
  if (!given.device()) return {};
  if (!named && (!given.gflops || !given.gbs))
    throw Error(ErrorKind::kUsage, std::string(given.gflops ? "--device-gflops" : "--device-gbs") +
                                       " describes a device only together with " +
                                       (given.gflops ? "--device-gbs" : "--device-gflops"));
  DeviceModel device = named ? *named : DeviceModel{};
  for (OpFamily family : {OpFamily::kLinear, OpFamily::kAttention, OpFamily::kConv})
    if (given.gflops) device.flop_per_s[static_cast<size_t>(family)] = *given.gflops * 1e9;
  if (given.gbs) device.bytes_per_s.fill(*given.gbs * 1e9);
  return device;
}

SampledModel sampled(const GeneratorOptions& options, const OpenModel& model) {
  const WeightFormat weights = options.weights;
  return {.dtype = options.dtype,
          .model = model.directory.expert(0).traits(),
          .vae = *model.directory.vae_model,
          .vae_dtype = options.vae_dtype,
          .weights = weights == WeightFormat::kFile ? WeightFormat::kCompute : weights,
          .attention = options.attention};
}

// The device of every rank, as a text that is equal where the device is the same.
std::vector<std::string> identities_of(const RankMachine& machine, const Ranks& ranks) {
  std::vector<std::string> devices;
  for (int rank = 0; rank < ranks.count; ++rank) {
    const Device device = machine.devices[rank];
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

Link GivenRates::link() const {
  return {.latency_s = link_ms.value_or(0) * 1e-3, .bytes_per_s = link_gbit.value_or(0) * 1e9 / 8};
}

MeasuredRanks measured_ranks(const RankMachine& machine, const Ranks& ranks,
                             const OpenModel& model) {
  MeasuredRanks out{.link = machine.given.link(), .gpu = {}};
  const bool gpus = machine.planned && machine.planned->here,
             rates = gpus && !machine.given.device(),
             links = ranks.count > 1 && (gpus || (ranks.processes && !machine.planned)) &&
                     !machine.given.links();
  if (!rates && !links) return out;
  const std::vector<std::string> devices =
      gpus ? identities_of(machine, ranks) : std::vector<std::string>{};
  const SampledModel of = sampled(machine.options, model);
  const Link given = out.link;
  on_ranks(ranks, [&](Communicator& world) {
    Stream stream = gpus ? stream_on(machine.devices[world.rank()]) : Stream::cpu(1);
    std::optional<DeviceModel> gpu;
    if (rates) gpu = measured_gpus(world, stream, devices, of);
    const Link link = links ? measure_link(world, stream) : given;
    if (world.rank() == ranks.first) out = {link, gpu};
  });
  return out;
}

namespace {

// The rates of weights that are copied or read for every forward.
UploadForecast rate_of_weights(const RankMachine& of, const OpenModel& model) {
  if (!of.planned) {
    if (!of.streams_weights && !of.given.host_gbs)
      return {1, kAssumedDiskGbs * 1e9, "assumed", true};
    return read_forecast(of.given.host_gbs, 1, model.directory.expert(0), *model.expert_files[0],
                         {.dtype = of.options.dtype, .weights = of.options.weights});
  }
  if (of.planned->named && !of.given.host_gbs)
    return {1, of.planned->rates->host_gbs * 1e9, "assumed"};
  std::optional<Stream> here;
  if (of.planned->here && of.options.resident_blocks > 0) here = stream_on(*of.planned->here);
  return upload_forecast(of.given.host_gbs, 1, here ? &*here : nullptr);
}

// The rates of a device, and where they come from.
DeviceModel rates_of_device(const RankMachine& of, const Ranks& ranks,
                            const MeasuredRanks& measured, const OpenModel& model,
                            std::string& source) {
  const PlannedDevice* const planned = of.planned ? &*of.planned : nullptr;
  const DeviceModel rates = planned ? planned->rates->model(of.options.dtype) : DeviceModel{};
  const bool named = planned && planned->named;
  if (const auto given = given_model(of.given, named ? &rates : nullptr)) return *given;
  if (measured.gpu) {
    source = " (measured here)";
    return *measured.gpu;
  }
  if (planned) {
    source = named ? " (expected of its datasheet)"
                   : std::string(" (assumed: an NVIDIA ") + planned->rates->name +
                         "; --device-name describes another)";
    return rates;
  }
  const int threads = of.options.threads, here = threads_of_rank(cpu_pools()).threads;
  source =
      " (measured here, " + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
  return measure_device(std::clamp(here / threads, 1, ranks.count), threads,
                        sampled(of.options, model));
}

}  // namespace

SimulatedMachine simulated_machine(const RankMachine& of, const Ranks& ranks,
                                   const MeasuredRanks& measured, const OpenModel& model) {
  SimulatedMachine machine{.planned = of.planned,
                           .model = {},
                           .description = {},
                           .link = measured.link,
                           .threads = of.options.threads};
  std::string source;
  machine.model = rates_of_device(of, ranks, measured, model, source);
  machine.description = to_string(machine.model) + source;
  machine.upload = rate_of_weights(of, model);
  // Without a device they share the disk.
  machine.ranks_per_device = of.planned ? of.planned_ranks_per_device : ranks.on_this_host;
  if (!machine.planned) return machine;
  machine.description = machine.planned->description() + ", " + machine.description;
  if (!machine.planned->named) return machine;
  const Link own = machine.planned->rates->link();
  if (!of.given.link_ms) machine.link.latency_s = own.latency_s;
  if (!of.given.link_gbit) machine.link.bytes_per_s = own.bytes_per_s;
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
  return {.model = generator.model_of(request),
          .options = options,
          .request = request,
          .machine = {.device = machine.model,
                      .link = machine.link,
                      .upload_bytes_per_s = machine.upload.bytes_per_s / machine.ranks_per_device}};
}

std::string forecast_facts(const Generator& generator, const Request& request) {
  JobSpec job{.request = request};
  job.request.prompt.clear();
  job.request.negative_prompt.reset();
  for (ScheduledPrompt& later : job.request.schedule) later.prompt.clear();
  // The content of files changes nothing, but their sizes do.
  std::string sizes = " " + std::to_string(request.audio.samples);
  const auto drop_content = [&](GivenPicture& picture) {
    for (const int64_t size : picture.size()) sizes += " " + std::to_string(size);
    picture = {.path = picture.given() ? "-" : ""};
  };
  drop_content(job.request.image);
  drop_content(job.request.last_image);
  for (GivenPicture& picture : job.request.references) drop_content(picture);
  job.request.audio = {.path = request.audio.given() ? "-" : ""};
  std::string facts = to_json(job).dump() + sizes;
  const bool guided = generator.layout_limits(request).guided;
  for (const Prompt& prompt : prompts_of(request, *generator.model(), guided))
    for (const auto* ids : {&prompt.ids, &prompt.pooled_ids})
      facts += " " + std::to_string(ids->size());
  return facts;
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
