#pragma once
// UCX: messages between processes that no MPI connects, over what UCX finds between their hosts:
// TCP by the interfaces at which they met, InfiniBand, RoCE. Users choose others by UCX's own
// variables (UCX_TLS, UCX_NET_DEVICES).
#include <string>

#include "parallel/bootstrap/launch.h"
#include "parallel/bootstrap/meeting_point.h"
#include "parallel/transport/processes/point_to_point.h"

namespace weft {

// True where this build has UCX.
bool ucx_built();
// "UCX 1.13.1"; "" where this build has none. Error(kUsage) where its libraries are missing.
std::string ucx_library();
// True where UCX finds its support of CUDA, and UCX_TLS does not leave it out: it then takes
// pointers to the memory of CUDA devices. Error(kUsage) where its libraries are missing.
bool ucx_takes_device_memory();

// Meets the other ranks at the point. Error(kComm) where they do not come within a minute;
// Error(kUsage) that names the build option where this build has no UCX.
ProcessMessages make_ucx_messages(const Launch& launch, const MeetingPoint& point);

}  // namespace weft
