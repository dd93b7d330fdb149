#include "parallel/transport/staging.h"

#include <algorithm>
#include <bit>

namespace weft {

// Takes the smallest idle buffer that is large enough. New ones have a power of two of bytes, so
// that similar sizes can share them.
Staging::Buffer Staging::take(size_t bytes) {
  const auto fits = [&](const Buffer& buffer) { return buffer.memory.bytes() >= bytes; };
  auto best = idle_.end();
  for (auto buffer = idle_.begin(); buffer != idle_.end(); ++buffer)
    if (fits(*buffer) && buffer->read.done() &&
        (best == idle_.end() || buffer->memory.bytes() < best->memory.bytes()))
      best = buffer;
  if (best == idle_.end()) return {.memory = PinnedMemory(std::bit_ceil(bytes)), .read = {}};
  Buffer found = std::move(*best);
  idle_.erase(best);
  return found;
}

}  // namespace weft
