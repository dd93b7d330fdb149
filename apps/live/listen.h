#pragma once
// weft stream --listen: faces for clients over WebSocket.
#include <memory>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/device.h"
#include "engine/session/stream_engine.h"

namespace weft {

struct LiveJob {
  std::shared_ptr<const OpenModel> model;
  std::string caption;  // of clients that state none
  Ranks ranks;
  StreamSettings settings;
};

// Serves until a signal asks for the end, and returns the exit code. Prints the address on standard
// output when clients can connect, and a log on standard error.
int run_live(const Flags& flags, const LiveJob& job);

}  // namespace weft
