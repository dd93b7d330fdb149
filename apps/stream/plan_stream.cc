#include "apps/stream/plan_stream.h"

#include <algorithm>
#include <cstdio>

#include "apps/command_line/placement.h"
#include "apps/stream/stream_flags.h"
#include "apps/stream/stream_report.h"
#include "engine/planning/machine.h"

namespace weft {
namespace {

// Flags of videos would be ignored.
void refuse_what_streams_lack(const Flags& flags) {
  const auto of_streams = [](const std::string& name) {
    return name.starts_with("device-") || name.starts_with("link-") ||
           std::ranges::any_of(flag_table(), [&](const FlagSpec& spec) {
             return spec.name == name && (spec.commands & kStream);
           });
  };
  for (const FlagSpec& spec : flag_table())
    if (const std::string name = spec.name;
        (spec.commands & kPlan) && flags.typed(name) && !of_streams(name))
      throw Error(ErrorKind::kUsage,
                  flags.label(name) +
                      " is of videos and pictures, and this model draws streams "
                      "alone; legal: flags of weft stream, and those of a device");
}

// The most that ranks may take of a device. A CPU that is not measured has no limit.
uint64_t memory_limit(const Flags& flags, const SimulatedMachine& machine) {
  const uint64_t limit = flags.bytes("memory-limit");
  if (!machine.planned) return limit ? limit : UINT64_MAX;
  return (limit ? limit : available_memory(machine.planned->traits)) /
         static_cast<uint64_t>(machine.ranks_per_device);
}

}  // namespace

bool draws_streams_alone(const ModelDirectory& model) {
  return model.defaults.stream && !model.chunks.any() &&
         model.expert(0).traits().signal_columns > 0;
}

int plan_stream(const Flags& flags, const std::shared_ptr<const OpenModel>& model) {
  refuse_what_streams_lack(flags);
  if (layout_text(flags).starts_with("all"))
    throw Error(ErrorKind::kUsage, flags.label("layout") + " is '" + flags.text("layout") +
                                       "'; legal for a stream: auto, or one layout");
  Ranks ranks;
  ranks.count = ranks.on_this_host = static_cast<int>(flags.integer("ranks").value_or(1));
  PlannedStream stream{.model = model, .settings = stream_settings(flags, ranks, *model)};
  stream.caption = stream_caption(*model->directory.defaults.stream, {}, {});
  stream.ranks = ranks.count;
  const RankMachine here = rank_machine(flags, ranks);
  const SimulatedMachine machine =
      simulated_machine(here, ranks, measured_ranks(here, ranks, *model), *model);
  if (machine.planned) stream.settings.planned = machine.planned->traits;
  stream.settings.memory_limits = {memory_limit(flags, machine)};
  const auto simulated = [&](const StreamSettings& how) {
    return simulate_stream(*stream.engine(how), stream.caption, stream.fps(),
                           {.device = machine.model, .link = machine.link});
  };
  StreamMeasurement measured = simulated(stream.settings);
  if (stream.is_open()) {
    stream.settings = best_split(stream, measured, simulated).settings;
    measured = simulated(stream.settings);
  }
  StreamSplit split{
      .engine = stream.engine(stream.settings), .forecast = measured.stream, .memory = {}};
  split.memory = split.engine->memory(stream.caption);
  if (flags.on("json"))
    std::printf("%s\n", to_json(split).dump().c_str());
  else
    print_stream(stdout, stream, split, machine.description);
  check_memory(split.memory);
  return 0;
}

}  // namespace weft
