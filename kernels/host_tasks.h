#pragma once
// Work of the host that is no op: several threads share it.
#include <cstdint>
#include <functional>

#include "kernels/stream.h"

namespace weft {

// Calls body(i) for i in [0, n), on at most as many threads as the stream has. An exception of one
// is rethrown when all have ended.
void host_tasks(const Stream& stream, int64_t n, const std::function<void(int64_t)>& body);

}  // namespace weft
