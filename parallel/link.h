#pragma once
// LinkTransport: any transport as if its wires were slow. A message is handed over no earlier than
// start + bytes / bandwidth + latency, where start waits for the sender's earlier messages to the
// same peer. Nothing else changes, so results are those of the wires below.
#include <memory>

#include "parallel/transport.h"

namespace weft {

struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0 = unlimited
};

std::shared_ptr<Transport> make_link(std::shared_ptr<Transport> inner, const Link& link);

}  // namespace weft
