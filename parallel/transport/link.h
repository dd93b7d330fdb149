#pragma once
// LinkTransport: makes any transport behave as if its links were slow. A message is delivered no
// earlier than start + bytes / bandwidth + latency; it starts when the sender's earlier messages to
// the same peer have left. Results do not change.
#include <memory>

#include "parallel/transport/transport.h"

namespace weft {

struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0 = unlimited
};

// `inner` must have a job clock (Transport::job_clock_ns), by which the sender dates a message and
// the receiver holds it.
std::shared_ptr<Transport> make_link(std::shared_ptr<Transport> inner, const Link& link);

}  // namespace weft
