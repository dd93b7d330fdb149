#include "apps/serve/jobs/replica_flags.h"

#include <algorithm>

#include "apps/command_line/placement.h"
#include "apps/device.h"
#include "engine/memory/memory_plan.h"
#include "io/legal.h"

namespace weft {
namespace {

constexpr const char* kOrigin = "--replicas";

int number_of_replicas(const Flags& flags, int along_data) {
  const auto given = static_cast<int>(*flags.integer("replicas"));
  if (flags.given("replicas") && along_data > 1 && given != along_data)
    throw Error(ErrorKind::kUsage, flags.label("replicas") + " is " + std::to_string(given) +
                                       ", but the layout has data=" + std::to_string(along_data) +
                                       "; legal: one of them, or the same");
  return std::max(given, along_data);
}

// The layout of one replica.
void take_data_axis(Flags& flags, int along_data) {
  if (flags.given("dp")) return flags.imply("dp", "1", kOrigin);
  std::string layout;
  for (const std::string& part : split(flags.text("layout"), ','))
    layout += (layout.empty() ? "" : ",") +
              (part == "data=" + std::to_string(along_data) ? "data=1" : part);
  flags.imply("layout", layout, kOrigin);
}

}  // namespace

ReplicaFlags replica_flags(const Flags& flags) {
  const auto along_data = static_cast<int>(parts_along(Axis::kData, flags).value_or(1));
  ReplicaFlags out{.replicas = number_of_replicas(flags, along_data), .flags = flags};
  if (out.replicas == 1) return out;
  if (wants_cuda(flags))
    throw Error(ErrorKind::kUsage,
                "there are " + std::to_string(out.replicas) +
                    " replicas with --device cuda, but replicas share the CPUs of one process; "
                    "legal: one replica, and a weft worker for each further GPU");
  Flags& team = out.flags;
  if (along_data > 1) {
    take_data_axis(team, along_data);
    const int64_t ranks = flags.integer("ranks").value_or(1);
    if (ranks % along_data != 0)
      throw Error(ErrorKind::kUsage, flags.label("ranks") + " is " + std::to_string(ranks) +
                                         ", legal with data=" + std::to_string(along_data) +
                                         ": its multiples");
    team.imply("ranks", std::to_string(ranks / along_data), kOrigin);
  }
  if (!flags.given("threads"))
    team.imply("threads",
               std::to_string(std::max(1, threads_per_rank(team, ranks_of(team)) / out.replicas)),
               kOrigin);
  const uint64_t memory =
      flags.given("memory-limit") ? flags.bytes("memory-limit") : available_memory();
  team.imply("memory-limit", std::to_string(memory / static_cast<uint64_t>(out.replicas)), kOrigin);
  return out;
}

}  // namespace weft
