#pragma once
// NCCL transport: the ranks own one GPU each, as threads of one process or as processes. Proven
// with a stub of NCCL in host memory only (tests/parallel/nccl_test.cc), and by a test that runs
// where there is one GPU; several GPUs have not been had.
//
// NCCL's point-to-point messages have no tags and block the stream they are on, so none is issued
// before both of its ends are posted: the ends meet on a MessageBoard, which gives all ranks one
// order, and a thread of the rank's own issues what has met as one NCCL group on a stream of its
// own. Posting order never deadlocks; ends that never meet end the job with both tags in the line,
// ends of different sizes reach Communicator::wait as such and move nothing.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/transport.h"

namespace weft {

// Whether this build can.
bool nccl_built();

struct NcclOptions {
  double startup_seconds = 60;  // within which every rank must be ready
  std::string interfaces = {};  // of the messages beside NCCL's ("eth0,eth1"), for processes
};

// Ranks as threads of this process: rank r on devices[r]. Memory of the host is carried through a
// buffer on the device. Memory of the device is used as it is, and its messages wait for what the
// stream (of a CPU: the device's default stream) has been given before the post; peers must be able
// to reach it, which they cannot cudaMallocAsync's. Error(kUsage) that names the build option where
// this build has no NCCL, Error(kComm) that names the ranks that were not ready.
std::vector<std::shared_ptr<Transport>> make_nccl_transports(std::span<const int> devices,
                                                             const NcclOptions& options = {});

// Ranks as processes. `share` gives every rank the first one's text (parallel/share.h). The first
// rank's transport goes when the others' have gone. A process that dies ends the job at once; one
// that is stopped is not told from one that computes (parallel/control_plane.h does that).
std::shared_ptr<Transport> make_nccl_transport(
    int rank, int size, int device, const std::function<std::string(const std::string&)>& share,
    const NcclOptions& options = {});

}  // namespace weft
