#pragma once
// NCCL transport: the ranks own one GPU each, as threads of one process or as processes. So far it
// has been tested with a stub of NCCL in host memory (tests/parallel/nccl_test.cc) and on one GPU;
// it has never run on several GPUs.
//
// NCCL's point-to-point messages have no tags and block the stream they are on, so none is issued
// before both of its ends are posted. A Matchmaker pairs the ends and gives all ranks one order; a
// thread of the rank's own then issues the paired messages as one NCCL group on its own stream.
// Posting order never deadlocks. Ends that never match end the job with both tags in the error;
// ends of different sizes move nothing, and Communicator::wait reports them.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/transport/transport.h"

namespace weft {

struct NcclApi;

struct NcclOptions {
  double startup_seconds = 60;   // within which every rank must be ready
  std::string interfaces = {};   // of the matchmaker's connections between processes ("eth0,eth1")
  const NcclApi* api = nullptr;  // other calls than NCCL's and CUDA's, for tests (nccl_api.h)
};

// The ranks are threads of this process, rank r on devices[r]. Host memory is copied through a
// buffer on the device. Device memory is used in place: a message waits for the work its stream was
// given before the post (a CPU stream stands for the device's default stream), and peers must be
// able to reach the memory, so it may not come from cudaMallocAsync. Error(kUsage) that names the
// build option where this build has no NCCL; Error(kComm) that names the ranks that were not ready.
std::vector<std::shared_ptr<Transport>> make_nccl_transports(std::span<const int> devices,
                                                             const NcclOptions& options = {});

// The ranks are processes. `share` gives every rank the first one's text
// (parallel/bootstrap/share.h). The first rank's transport is destroyed after the others'. A
// process that dies ends the job at once; a stopped one is not recognised here
// (parallel/bootstrap/control_plane.h does that).
std::shared_ptr<Transport> make_nccl_transport(
    int rank, int size, int device, const std::function<std::string(const std::string&)>& share,
    const NcclOptions& options = {});

}  // namespace weft
