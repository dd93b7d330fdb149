#pragma once
// The flags that say how the processes of a job find each other: --transport, --nodes, --node-rank
// and --port.
#include <optional>

#include "apps/command_line/flags.h"
#include "parallel/transport/processes/process_transport.h"

namespace weft {

// The way in which this process reaches the others of its job; nullopt where it is alone and ranks
// are threads. Error(kUsage) where the flags contradict each other, or the launcher that started
// the process.
std::optional<ProcessPlace> process_place(const Flags& flags);
std::optional<ProcessPlace> process_place(const Flags& flags, const Environment& environment);

}  // namespace weft
