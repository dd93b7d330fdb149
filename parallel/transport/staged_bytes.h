#pragma once
// The bytes of a staging buffer, which messages pass through where a transport takes memory of
// another kind than theirs: pinned host memory for a device's messages over a transport of host
// memory (parallel/transport/staging.h), memory of the device for the host's messages over NCCL. A
// memory plan adds them up for the messages that are under way at the same time: a ring's hop has a
// send and a receive of one block, an all-to-all one of each for every peer. The buffers stay until
// the job ends, and later messages share them.
#include <bit>
#include <cstdint>

namespace weft {

// A power of two, so that messages of similar sizes can share a buffer.
constexpr int64_t staged_bytes(int64_t message_bytes) {
  return message_bytes > 0
             ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(message_bytes)))
             : 0;
}

// NCCL moves messages that match at the same time together, each in a multiple of these bytes. Its
// staging is at most 2 staged_bytes() of the largest such group, because smaller buffers stay, too.
inline constexpr int64_t kNcclStagedUnit = 256;

}  // namespace weft
