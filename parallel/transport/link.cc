#include "parallel/transport/link.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "kernels/check.h"

namespace weft {

namespace {

class LinkTransport final : public TransportDecorator {
 public:
  LinkTransport(std::shared_ptr<Transport> inner, const Link& link)
      : TransportDecorator(std::move(inner)), link_(link) {
    CHECK(inner_->job_clock_ns(), "a link needs a transport whose ranks share a clock");
  }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    MessageHeader held = header;
    int64_t& free_ns = free_ns_[peer];  // when the link to the peer is free again
    const double wire_s =
        link_.bytes_per_s > 0 ? static_cast<double>(header.bytes) / link_.bytes_per_s : 0;
    free_ns = std::max(free_ns, *job_clock_ns()) + static_cast<int64_t>(wire_s * 1e9);
    held.due_ns = free_ns + static_cast<int64_t>(link_.latency_s * 1e9);
    return inner_->send(stream, peer, held, view);
  }

  MessageHeader wait(Transfer& transfer) override {
    const MessageHeader header = inner_->wait(transfer);
    const int64_t left = header.due_ns - *job_clock_ns();
    // A send ends with the transport below; only arrivals are delayed.
    if (transfer.receive && left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
    return header;
  }

 private:
  Link link_;
  std::map<int, int64_t> free_ns_;
};

}  // namespace

std::shared_ptr<Transport> make_link(std::shared_ptr<Transport> inner, const Link& link) {
  return std::make_shared<LinkTransport>(std::move(inner), link);
}

}  // namespace weft
