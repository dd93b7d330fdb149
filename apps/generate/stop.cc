#include "apps/generate/stop.h"

namespace weft {

namespace {

constinit std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

const std::atomic<bool>& stop_requested() { return g_stop; }
void request_stop() { g_stop = true; }

}  // namespace weft
