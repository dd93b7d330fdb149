#pragma once
// The flag that signals raise and long jobs look at between steps.
#include <atomic>

namespace weft {

// True since the first SIGINT, SIGTERM or SIGUSR1.
const std::atomic<bool>& stop_requested();
void request_stop();  // safe in a signal handler

}  // namespace weft
