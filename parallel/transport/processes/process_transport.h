#pragma once
// ProcessTransport: the transport between this process and the others of its job.
#include <memory>

#include "parallel/bootstrap/launch.h"
#include "parallel/transport/processes/message_transport.h"

namespace weft {

struct ProcessOptions {
  Launch launch = detect_launch();
  MessageOptions messages{};
};

// The first call makes the transport, and every rank must call it; later calls return it. A process
// that no launcher started waits for nobody. Error(kUsage) where the build has no library for it.
std::shared_ptr<Transport> process_transport(const ProcessOptions& options = {});

// Ends the transport in good order, where there is one; all ranks call it. A process that failed
// ends without it. Error(kComm) where the job has failed.
void finish_process_transport();

}  // namespace weft
