#include "parallel/schedule/simulate.h"

#include <algorithm>
#include <cmath>

#include "parallel/transport/local.h"
#include "parallel/transport/silent.h"

namespace weft {

namespace {

constexpr int64_t kCarried =
    64 << 10;  // payloads up to this size may steer the program, so they are copied

// One rank's simulated time of computing. Only the rank's own thread uses it.
class Clock final : public Meter {
 public:
  explicit Clock(const DeviceModel& device) : device_(device) {}

  bool runs() const override { return false; }
  void op(const Work& work, const std::function<void()>&) override {
    const auto family = static_cast<size_t>(work.family);
    const double products = device_.flop_per_s[family], bytes = device_.bytes_per_s[family];
    compute(work.family,
            std::max(products > 0 ? work.flop / products : 0, bytes > 0 ? work.bytes / bytes : 0));
  }
  void post() { compute(OpFamily::kCopy, device_.message_s); }
  void wait_until(double seconds) {
    if (seconds <= now_) return;
    note({now_, seconds, true, OpFamily::kCopy});
    now_ = seconds;
  }
  double now() const { return now_; }
  std::vector<TimelineSpan> take_spans() { return std::move(spans_); }

 private:
  void compute(OpFamily family, double seconds) {
    if (seconds <= 0) return;
    note({now_, now_ + seconds, false, family});
    now_ += seconds;
  }
  void note(const TimelineSpan& span) {
    if (!spans_.empty() && spans_.back().waits == span.waits &&
        (span.waits || spans_.back().family == span.family) && spans_.back().end_s == span.begin_s)
      spans_.back().end_s = span.end_s;
    else
      spans_.push_back(span);
  }

  const DeviceModel& device_;
  double now_ = 0;
  std::vector<TimelineSpan> spans_;
};

thread_local const Clock* t_clock = nullptr;

struct SimulatedTransfer final : Transfer {
  SimulatedTransfer(bool is_receive, std::unique_ptr<Transfer> inner, int64_t bytes, double copied)
      : Transfer(is_receive), inner(std::move(inner)), bytes(bytes), copied(copied) {}
  std::unique_ptr<Transfer> inner;
  int64_t bytes;
  double copied;  // a send's memory is free from this time on
};

class SimulatedTransport final : public TransportDecorator {
 public:
  SimulatedTransport(std::shared_ptr<Transport> inner, const DeviceModel& device, const Link& link,
                     Clock& clock)
      : TransportDecorator(std::move(inner)), messages_(device, link), clock_(clock) {}

  bool takes_device_memory() const override { return false; }
  std::optional<int64_t> job_clock_ns() const override { return std::nullopt; }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    clock_.post();
    const MessageClock::Sent sent = messages_.send(clock_.now(), header.bytes);
    MessageHeader on_wire = header;
    on_wire.bytes = carried(header.bytes);
    on_wire.due_ns = std::llround(sent.due_s * 1e9);
    return std::make_unique<SimulatedTransfer>(false, inner_->send(stream, peer, on_wire, view),
                                               header.bytes, sent.copied_s);
  }

  std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                    const TensorView& view) override {
    MessageHeader on_wire = expected;
    on_wire.bytes = carried(expected.bytes);
    return std::make_unique<SimulatedTransfer>(true, inner_->receive(stream, peer, on_wire, view),
                                               expected.bytes, 0);
  }

  MessageHeader wait(Transfer& transfer) override {
    auto& simulated = static_cast<SimulatedTransfer&>(transfer);
    MessageHeader header = inner_->wait(*simulated.inner);
    if (simulated.receive) {
      const double due_s = static_cast<double>(header.due_ns) * 1e-9;
      clock_.wait_until(messages_.receive(due_s, simulated.bytes));
      clock_.post();
    } else {
      clock_.wait_until(simulated.copied);
    }
    if (header.bytes == carried(simulated.bytes)) header.bytes = simulated.bytes;
    return header;
  }

 private:
  static int64_t carried(int64_t bytes) { return bytes > kCarried ? 0 : bytes; }

  MessageClock messages_;
  Clock& clock_;
};

SimulatedRank simulate_rank(Communicator& world, Clock& clock,
                            const std::function<void(Communicator& world)>& work) {
  const MeterScope scope(clock);
  t_clock = &clock;
  work(world);
  t_clock = nullptr;
  return {clock.now(), clock.take_spans(), world.counters()};
}

}  // namespace

double MessageClock::copy(double from_s, int64_t bytes) {
  const double rate = device_.copy_bytes_per_s;
  return stream_.serve(from_s, rate > 0 ? static_cast<double>(bytes) / rate : 0);
}

MessageClock::Sent MessageClock::send(double now_s, int64_t bytes) {
  const double copied_s = copy(now_s, bytes);
  return {copied_s, ports_.send(copied_s, bytes)};
}

double MessageClock::receive(double due_s, int64_t bytes) {
  return copy(ports_.receive(due_s, bytes), bytes);
}

DeviceModel measured_device(const TimingMeter& meter) {
  DeviceModel device;
  for (int i = 0; i < kOpFamilies; ++i) {
    const TimingMeter::Total& total = meter.total(static_cast<OpFamily>(i));
    if (total.seconds <= 0) continue;
    if (total.flop > 0)
      device.flop_per_s[i] = total.flop / total.seconds;
    else
      device.bytes_per_s[i] = total.bytes / total.seconds;
  }
  return device;
}

std::vector<SimulatedRank> simulate(int ranks, const DeviceModel& device, const Link& link,
                                    const std::function<void(Communicator& world)>& work) {
  std::vector<Clock> clocks(ranks, Clock(device));
  std::vector<SimulatedRank> results(ranks);
  std::vector<std::shared_ptr<Transport>> transports = make_local_transports(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    transports[rank] =
        std::make_shared<SimulatedTransport>(transports[rank], device, link, clocks[rank]);
  run_ranks(transports, [&](Communicator& world) {
    results[world.rank()] = simulate_rank(world, clocks[world.rank()], work);
  });
  return results;
}

SimulatedRank simulate_first(int ranks, const DeviceModel& device, const Link& link,
                             const std::function<void(Communicator& world)>& work) {
  Clock clock(device);
  Communicator world(std::make_shared<SimulatedTransport>(
      std::make_shared<SilentTransport>(0, ranks), device, link, clock));
  return simulate_rank(world, clock, work);
}

bool is_simulated() { return t_clock != nullptr; }

double simulated_seconds() {
  CHECK(t_clock, "outside of a simulation");
  return t_clock->now();
}

}  // namespace weft
