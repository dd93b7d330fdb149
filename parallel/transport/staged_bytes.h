#pragma once
// The bytes of a staging buffer in pinned host memory, which a device's messages pass through over
// a transport of host memory (parallel/transport/staging.h). A memory plan adds them up for the
// messages that are under way at the same time: a ring's hop has a send and a receive of one block,
// an all-to-all one of each for every peer. The buffers stay until the job ends, and later messages
// share them.
#include <bit>
#include <cstdint>

namespace weft {

// A power of two, so that messages of similar sizes can share a buffer.
constexpr int64_t staged_bytes(int64_t message_bytes) {
  return message_bytes > 0
             ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(message_bytes)))
             : 0;
}

}  // namespace weft
