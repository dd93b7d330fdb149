#pragma once
// weft stream --listen: faces for clients over WebSocket.
#include "apps/command_line/flags.h"
#include "engine/session/stream_split.h"

namespace weft {

// Serves until a signal asks for the end, and returns the exit code. Prints the address on standard
// output when clients can connect, and a log on standard error.
int run_live(const Flags& flags, const PlannedStream& stream);

}  // namespace weft
