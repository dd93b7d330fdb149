#include "parallel/transport/processes/process_transport.h"

#include "parallel/transport/processes/mpi.h"

namespace weft {

namespace {

std::shared_ptr<MessageTransport>& the_transport() {
  static std::shared_ptr<MessageTransport> transport;
  return transport;
}

}  // namespace

std::shared_ptr<Transport> process_transport(const ProcessOptions& options) {
  auto& transport = the_transport();
  if (!transport)
    transport = std::make_shared<MessageTransport>(
        make_mpi_messages(options.launch, options.messages.stuck), options.messages);
  return transport;
}

void finish_process_transport() {
  if (the_transport()) the_transport()->finish();
}

}  // namespace weft
