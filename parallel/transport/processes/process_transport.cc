#include "parallel/transport/processes/process_transport.h"

#include <cstdlib>

#include "parallel/transport/processes/mpi.h"
#include "parallel/transport/processes/ucx.h"

namespace weft {

namespace {

std::shared_ptr<MessageTransport>& the_transport() {
  static std::shared_ptr<MessageTransport> transport;
  return transport;
}

}  // namespace

ProcessPlace detect_place() {
  const Launch launch = detect_launch();
  return {.launch = launch,
          .point = meeting_point(launch, [](const char* name) { return std::getenv(name); }),
          .network = launch.mpi() ? Network::kMpi : Network::kUcx};
}

std::shared_ptr<Transport> process_transport(const MessageOptions& options,
                                             const ProcessPlace& place) {
  auto& transport = the_transport();
  if (transport) return transport;
  ProcessMessages messages = place.network == Network::kMpi
                                 ? make_mpi_messages(place.launch, options.stuck)
                                 : make_ucx_messages(place.launch, place.point);
  transport = std::make_shared<MessageTransport>(std::move(messages), options);
  return transport;
}

void finish_process_transport() {
  if (the_transport()) the_transport()->finish();
}

}  // namespace weft
