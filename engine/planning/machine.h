#pragma once
// Simulations of a job on this machine or on a described one, and the choice of its layout by them.
#include <optional>
#include <string>

#include "engine/parts/ranks.h"
#include "engine/planning/forecast.h"
#include "engine/planning/known_devices.h"
#include "engine/planning/upload_forecast.h"
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

// Rates that users describe in place of measured ones.
struct GivenRates {
  std::optional<double> gflops{}, gbs{};  // of a device, 1e9 FLOP/s and 1e9 bytes/s
  std::optional<double> host_gbs{};       // of weights that are copied or read for every forward
  std::optional<double> link_gbit{}, link_ms{};

  bool device() const { return gflops || gbs; }
  bool links() const { return link_gbit || link_ms; }
  Link link() const;  // unlimited where neither is given
};

// The devices of ranks, as far as their rates depend on them.
struct RankMachine {
  std::optional<PlannedDevice> planned{};  // nullopt: a CPU
  GivenRates given{};
  GeneratorOptions options{};     // of a rank: threads and number formats
  std::vector<Device> devices{};  // of every rank, where the planned one is here
  Device device(int rank) const { return devices.empty() ? Device{} : devices[rank]; }
  int planned_ranks_per_device = 1;  // of a planned device
  bool streams_weights = false;      // some weights are copied or read for every forward
};

// Rates that the ranks of a job measure together.
struct MeasuredRanks {
  Link link;
  // On GPUs: the slowest rank's, of its share of a device.
  std::optional<DeviceModel> gpu;
};
// Measures the links between processes, or between the GPUs of threads, where no link is given, and
// the GPUs that are here, unless their rates are given. All processes must call it, and all receive
// the same.
MeasuredRanks measured_ranks(const RankMachine& machine, const Ranks& ranks,
                             const OpenModel& model);
// The given rates, else what was measured of the GPUs, or a measurement of this CPU with ops of the
// model's sizes. For GPUs that are not here the rates of the named device, which then also has its
// links, or of an H200. Error(kUsage) where only one of two rates is given.
SimulatedMachine simulated_machine(const RankMachine& machine, const Ranks& ranks,
                                   const MeasuredRanks& measured, const OpenModel& model);

// The job for simulations; `options` are those of its ranks. The memory limit of a CPU is
// that of the options, else none.
PlannedJob planned_job(const Generator& generator, GeneratorOptions options, const Request& request,
                       const SimulatedMachine& machine);

// The facts of a resolved request that its forecasts and its memory plan depend on: all but the
// seed and the words of the prompts.
std::string forecast_facts(const Generator& generator, const Request& request);

// True where the text of a layout leaves the choice to a simulation.
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
