#pragma once
// The flags that say how the processes of a job find each other: --transport, --nodes, --node-rank
// and --port.
#include <optional>
#include <span>
#include <string>

#include "apps/command_line/flags.h"
#include "parallel/transport/processes/process_transport.h"

namespace weft {

// The way in which this process reaches the others of its job; nullopt where it is alone and ranks
// are threads. Error(kUsage) where the flags contradict each other, or the launcher that started
// the process.
std::optional<ProcessPlace> process_place(const Flags& flags);
std::optional<ProcessPlace> process_place(const Flags& flags, const Environment& environment);

// The same as far as the arguments and the environment tell it, whatever is wrong with them
// otherwise: the place of a process that may have no flags. A config file is not read.
ProcessPlace place_of_arguments(std::span<const std::string> arguments);

}  // namespace weft
