#pragma once
// Simulations of a job on this machine or on a described one, and the choice of its layout by them.
#include <optional>
#include <string>

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
// The same, but the link that the processes of this job measure where neither is given. All
// processes must call it.
Link link_between(const Flags& flags, const Ranks& ranks);
// --device-gflops and --device-gbs, else a measurement of this CPU with ops of the model's sizes,
// or for GPUs the rates of --device-name, which then also has its links, or of an H200.
SimulatedMachine simulated_machine(const Flags& flags, const Ranks& ranks, const Link& link,
                                   const OpenModel& model);

// The job for simulations; `options` are those of its ranks. The memory limit of a CPU is
// --memory-limit, else none.
PlannedJob planned_job(const Generator& generator, GeneratorOptions options, const Request& request,
                       const SimulatedMachine& machine);

// True where --layout and its short forms leave the choice to a simulation.
bool chooses_layout(const std::string& layout);
// "0.41 s; next: ring=4 0.43 s, ulysses=4 0.5 s; 2 faster ones do not fit in memory"
std::string to_string(const LayoutChoice& choice);
// [{"layout", "seconds", "high_water_bytes"}, ...]
Json to_json(const LayoutChoice& choice);

}  // namespace weft
