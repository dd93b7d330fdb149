#include "parallel/transport/staging.h"

#include <algorithm>

#include "parallel/transport/staged_bytes.h"

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
  if (best == idle_.end())
    return {.memory = PinnedMemory(static_cast<size_t>(staged_bytes(static_cast<int64_t>(bytes)))),
            .read = {}};
  Buffer found = std::move(*best);
  idle_.erase(best);
  return found;
}

int64_t Staging::held_bytes() const {
  int64_t bytes = 0;
  for (const Buffer& buffer : idle_) bytes += static_cast<int64_t>(buffer.memory.bytes());
  return bytes;
}

void Staging::trim() {
  for (Buffer& buffer : idle_) buffer.read.sync();
  idle_.clear();
}

}  // namespace weft
