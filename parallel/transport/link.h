#pragma once
// LinkTransport: makes any transport behave as if its links were slow. Results do not change. The
// simulation (parallel/schedule/simulate.h) uses the same model of a link.
#include <map>
#include <memory>

#include "parallel/transport/transport.h"

namespace weft {

struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;  // 0 = unlimited
};

// Serves one message at a time: a port of a rank, or its communication stream.
class Port {
 public:
  // Serves for `seconds` in the free time from `from` on. Returns the end.
  double serve(double from, double seconds);

 private:
  std::map<double, double> busy_;  // from begin to end, disjoint
};

// One rank's end of its links to all others: a port out and a port in. Messages that use a port at
// the same time share it: all take as long as their bytes together, and the one posted first (out)
// or awaited first (in) goes before the others.
class LinkPorts {
 public:
  explicit LinkPorts(const Link& link) : link_(link) {}
  // The time at which the last byte of a message that is ready at `from` can reach its receiver.
  double send(double from, int64_t bytes);
  // The time at which a message that can be there at `due` has come in.
  double receive(double due, int64_t bytes);

 private:
  double seconds(int64_t bytes) const {
    return link_.bytes_per_s > 0 ? static_cast<double>(bytes) / link_.bytes_per_s : 0;
  }

  Link link_;
  Port out_, in_;
};

// `inner` must have a job clock (Transport::job_clock_ns), by which the sender dates a message and
// the receiver holds it.
std::shared_ptr<Transport> make_link(std::shared_ptr<Transport> inner, const Link& link);

}  // namespace weft
