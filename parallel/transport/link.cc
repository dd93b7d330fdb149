#include "parallel/transport/link.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "kernels/check.h"

namespace weft {

double Port::serve(double from, double seconds) {
  if (seconds <= 0) return from;
  auto next = busy_.upper_bound(from);
  double begin = from, at = from;
  if (next != busy_.begin() && std::prev(next)->second >= from) {
    --next;
    begin = next->first;
  }
  for (; next != busy_.end() && next->first < at + seconds; next = busy_.erase(next)) {
    seconds -= std::max(0.0, next->first - at);
    at = next->second;
  }
  return busy_[begin] = at + seconds;
}

double LinkPorts::send(double from, int64_t bytes) {
  return out_.serve(from, seconds(bytes)) + link_.latency_s;
}

// The first byte comes as long before the last as the sender's port took to send it.
double LinkPorts::receive(double due, int64_t bytes) {
  return in_.serve(due - seconds(bytes), seconds(bytes));
}

namespace {

// The ports of a rank, which has one or two threads.
struct SharedPorts {
  explicit SharedPorts(const Link& link) : ends(link) {}
  std::mutex lock;  // guards the member below
  LinkPorts ends;
};

class LinkTransport final : public TransportDecorator {
 public:
  LinkTransport(std::shared_ptr<Transport> inner, std::shared_ptr<SharedPorts> ports)
      : TransportDecorator(std::move(inner)), ports_(std::move(ports)) {
    CHECK(inner_->job_clock_ns(), "a link needs a transport whose ranks share a clock");
  }

  std::shared_ptr<Transport> beside() override {
    return std::make_shared<LinkTransport>(inner_->beside(), ports_);
  }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    MessageHeader held = header;
    {
      const std::lock_guard guard(ports_->lock);
      held.due_ns = std::llround(ports_->ends.send(now(), header.bytes) * 1e9);
    }
    return inner_->send(stream, peer, held, view);
  }

  MessageHeader wait(Transfer& transfer) override {
    const MessageHeader header = inner_->wait(transfer);
    if (!transfer.receive) return header;  // a send ends with the transport below
    double there = 0;
    {
      const std::lock_guard guard(ports_->lock);
      there = ports_->ends.receive(static_cast<double>(header.due_ns) * 1e-9, header.bytes);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(there - now()));
    return header;
  }

 private:
  double now() const { return static_cast<double>(*job_clock_ns()) * 1e-9; }

  const std::shared_ptr<SharedPorts> ports_;
};

}  // namespace

std::shared_ptr<Transport> make_link(std::shared_ptr<Transport> inner, const Link& link) {
  return std::make_shared<LinkTransport>(std::move(inner), std::make_shared<SharedPorts>(link));
}

}  // namespace weft
