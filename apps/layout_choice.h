#pragma once
// Simulations of a job on this machine or on a described one, and the choice of its layout by them.
#include <optional>
#include <string>

#include "apps/calibrate.h"
#include "apps/device.h"
#include "apps/generate/offload_report.h"
#include "engine/planning/forecast.h"
#include "io/json.h"

namespace weft {

// The devices and links that a job is simulated on.
struct SimulatedMachine {
  std::optional<PlannedDevice> planned;  // nullopt: a CPU
  DeviceModel model;
  std::string description;
  Link link;
  int threads = 1;  // of each rank, on this machine
  int ranks_per_device =
      1;                    // ranks that share the device's memory and its link to the host or disk
  UploadForecast upload{};  // its rate alone is used
};

// The link of --link-gbit and --link-ms; unlimited where neither is given.
Link link_of(const Flags& flags);
// Rates that the ranks of a job measure together.
struct MeasuredRanks {
  Link link;
  // On GPUs: the slowest rank's, of its share of a device.
  std::optional<DeviceModel> gpu;
};
// Measures the links between processes, or between the GPUs of threads, where neither --link-gbit
// nor --link-ms is given, and the GPUs that are here, unless flags describe others. All processes
// must call it, and all receive the same.
MeasuredRanks measured_ranks(const Flags& flags, const Ranks& ranks, const OpenModel& model);
// --device-gflops and --device-gbs, else what was measured of the GPUs, or a measurement of this
// CPU with ops of the model's sizes. For GPUs that are not here the rates of --device-name, which
// then also has its links, or of an H200.
SimulatedMachine simulated_machine(const Flags& flags, const Ranks& ranks,
                                   const MeasuredRanks& measured, const OpenModel& model);

// The job for simulations; `options` are those of its ranks. The memory limit of a CPU is
// --memory-limit, else none.
PlannedJob planned_job(const Generator& generator, GeneratorOptions options, const Request& request,
                       const SimulatedMachine& machine);

// True where --layout and its short forms leave the choice to a simulation.
bool chooses_layout(const std::string& layout);
// The same, where more than one of these layouts, or of the ranks of their stages, is possible.
bool chooses_layout(const std::string& layout, std::span<const Layout> layouts);
// "0.41 s; next: ring=4 0.43 s, ulysses=4 0.5 s; 2 faster ones do not fit in memory"
std::string to_string(const LayoutChoice& choice);
// [{"layout", "seconds", "high_water_bytes"}, ...]
Json to_json(const LayoutChoice& choice);
// {"rates", "link"}, as a header prints them.
Json to_json(const SimulatedMachine& machine);

}  // namespace weft
