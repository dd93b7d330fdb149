#pragma once
// NCCL: devices move messages of their memory between processes by themselves. The ranks own one
// GPU each.
//
// NCCL's messages have no tags. They pair in the order in which both ends are enqueued on a
// communicator, which works on one of them after the other. So every group of ranks that exchanges,
// and every pair of ranks in each direction, has a communicator and a stream of its own:
// - All members of a group post its exchanges in one order, so nothing is before the first of them
//   that is not done.
// - A message waits for those before it in its direction alone. Of two that pair, both ends are
//   posted after those of the messages before (parallel/schedule/plan_check.h proves it of plans),
//   so no circle of waits arises between pairs.
// - A kernel that waits for its other end keeps its thread blocks (kExchangeBlocks, kMessageBlocks)
//   and takes them from what computes, but kernels that compute end by themselves. So all of them
//   run at last, in whatever order each device launches them: NCCL's rule that several
//   communicators of a device launch in one order on all ranks is for kernels that fill the device.
//   Streams may not share a queue of the device, nor may a kernel be loaded while another waits
//   (prepare_nccl_environment).
// Memory of the device is freed when all its kernels have ended, also those that wait; what is
// posted ahead must not need what follows a release.
// It has been tested on the emulated device alone (apps/guide/gpu.md lists what is unproven).
#include <memory>

#include "parallel/transport/transport.h"

namespace weft {

// The most thread blocks of a kernel that moves an exchange, or a message between two ranks.
inline constexpr int kExchangeBlocks = 16, kMessageBlocks = 2;
// The most communicators of a rank: streams beyond the device's queues would share one.
inline constexpr int kMostNcclStreams = 28;

// The device memory of a connection to another rank, in a group's communicator and in a pair's: an
// assumption of plans, from NCCL's buffer of 4 MiB for each of a connection's channels and the
// smaller ones of its other protocols. It has not been measured.
inline constexpr int64_t kExchangePeerBytes = int64_t{32} << 20,
                         kMessagePeerBytes = int64_t{16} << 20;

// True where this build has NCCL.
bool nccl_built();
// "NCCL 2.27.7"; "" where this build has none.
std::string nccl_library();

// Sets what CUDA reads from the environment when it starts, unless the user has: a queue of the
// device for every stream, and kernels that are loaded before they run. Called before CUDA is.
void prepare_nccl_environment();

enum class NcclSums : uint8_t {
  kOurs,     // Communicator's: the same bits in every layout and run
  kLibrary,  // ncclAllReduce
};

// Lets the devices of the ranks of `inner` exchange what open_group() and open_pairs() name.
// Everything else goes through `inner`: messages of the host's memory, ids of communicators, and
// what tells that a rank is gone; a thread then ends the messages under way. This rank's device is
// `device`, and no other rank's. Error(kUsage) that names the build option where this build has no
// NCCL.
std::shared_ptr<Transport> make_nccl(std::shared_ptr<Transport> inner, Device device,
                                     NcclSums sums = NcclSums::kOurs);

}  // namespace weft
