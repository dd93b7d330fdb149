#pragma once
// ProcessTransport: the transport between this process and the others of its job.
#include <memory>

#include "parallel/bootstrap/launch.h"
#include "parallel/bootstrap/meeting_point.h"
#include "parallel/transport/processes/message_transport.h"

namespace weft {

enum class Network : uint8_t { kMpi, kUcx };

// Says how this process was started, and by which network it reaches the others.
struct ProcessPlace {
  Launch launch;
  MeetingPoint point;  // used by UCX
  Network network = Network::kMpi;
};
// Read from the environment: MPI where its launcher started the process, else UCX.
ProcessPlace detect_place();

// The first call makes the transport, and every rank must call it; later calls return it.
// Error(kUsage) where the build lacks the network; Error(kComm) where the ranks do not come
// together.
std::shared_ptr<Transport> process_transport(const MessageOptions& options = {},
                                             const ProcessPlace& place = detect_place());

// Ends the transport in good order, where there is one; all ranks call it. A process that failed
// ends without it. Error(kComm) where the job has failed.
void finish_process_transport();

}  // namespace weft
