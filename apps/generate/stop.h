#pragma once
// The flag that signals set and long jobs read between steps.
#include <atomic>

namespace weft {

// True since the first SIGINT, SIGTERM or SIGUSR1.
const std::atomic<bool>& stop_requested();
void request_stop();  // safe in a signal handler

}  // namespace weft
