#include "parallel/schedule/simulate.h"

#include <algorithm>
#include <cmath>

#include "parallel/transport/local.h"
#include "parallel/transport/silent.h"

namespace weft {

namespace {

constexpr int64_t kCarried =
    64 << 10;  // payloads up to this size may steer the program, so they are copied

// One rank's simulated time: a clock of its computing and one of its messages. Only the rank's own
// thread uses it.
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
  // The communication stream copies a message that is there from `from` on. Returns the end.
  double copy(double from, int64_t bytes) {
    return messages_.serve(from, device_.copy_bytes_per_s > 0
                                     ? static_cast<double>(bytes) / device_.copy_bytes_per_s
                                     : 0);
  }
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
  Port messages_;
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
  SimulatedTransport(std::shared_ptr<Transport> inner, const Link& link, Clock& clock)
      : TransportDecorator(std::move(inner)), ports_(link), clock_(clock) {}

  bool takes_device_memory() const override { return false; }
  std::optional<int64_t> job_clock_ns() const override { return std::nullopt; }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    clock_.post();
    const double copied = clock_.copy(clock_.now(), header.bytes);
    MessageHeader on_wire = header;
    on_wire.bytes = carried(header.bytes);
    on_wire.due_ns = std::llround(ports_.send(copied, header.bytes) * 1e9);
    return std::make_unique<SimulatedTransfer>(false, inner_->send(stream, peer, on_wire, view),
                                               header.bytes, copied);
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
      const double there =
          ports_.receive(static_cast<double>(header.due_ns) * 1e-9, simulated.bytes);
      clock_.wait_until(clock_.copy(there, simulated.bytes));
      clock_.post();
    } else {
      clock_.wait_until(simulated.copied);
    }
    if (header.bytes == carried(simulated.bytes)) header.bytes = simulated.bytes;
    return header;
  }

 private:
  static int64_t carried(int64_t bytes) { return bytes > kCarried ? 0 : bytes; }

  LinkPorts ports_;
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
    transports[rank] = std::make_shared<SimulatedTransport>(transports[rank], link, clocks[rank]);
  run_ranks(transports, [&](Communicator& world) {
    results[world.rank()] = simulate_rank(world, clocks[world.rank()], work);
  });
  return results;
}

SimulatedRank simulate_first(int ranks, const DeviceModel& device, const Link& link,
                             const std::function<void(Communicator& world)>& work) {
  Clock clock(device);
  Communicator world(std::make_shared<SimulatedTransport>(
      std::make_shared<SilentTransport>(0, ranks), link, clock));
  return simulate_rank(world, clock, work);
}

double simulated_seconds() {
  CHECK(t_clock, "outside of a simulation");
  return t_clock->now();
}

namespace {

struct Colour {
  const char* name;
  const char* fill;
};
constexpr Colour kWaiting{"waiting for messages", "#d9d4c8"};
constexpr std::array<Colour, kOpFamilies> kFamilies{{{"linear", "#3b6ea5"},
                                                     {"attention", "#c2703d"},
                                                     {"convolution", "#5f8f4e"},
                                                     {"norm", "#8a6fa8"},
                                                     {"rope", "#b3a13c"},
                                                     {"pointwise", "#4f9a99"},
                                                     {"copies and messages", "#8c8c8c"}}};

// The last kind is waiting.
const Colour& colour_of(int kind) { return kind < kOpFamilies ? kFamilies[kind] : kWaiting; }

std::string rectangle(double x, double y, double width, double height, const char* fill) {
  char text[160];
  std::snprintf(text, sizeof text,
                "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n", x, y,
                width, height, fill);
  return text;
}

std::string label(double x, double y, const std::string& text) {
  char head[96];
  std::snprintf(head, sizeof head, "<text x=\"%.1f\" y=\"%.1f\">", x, y);
  std::string escaped;
  for (char c : text) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return head + escaped + "</text>\n";
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g s", seconds);
  return text;
}

}  // namespace

std::string timeline_svg(std::span<const SimulatedRank> ranks, const std::string& title) {
  constexpr int kSlices = 900, kRow = 44, kBar = 34, kLeft = 70, kTop = 70;
  constexpr int kKinds = kOpFamilies + 1;
  double end = 0;
  for (const SimulatedRank& rank : ranks) end = std::max(end, rank.seconds);
  const auto height = kTop + kRow * static_cast<int>(ranks.size()) + 30;
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1060\" height=\"" +
                    std::to_string(height) +
                    "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += label(10, 20, title);
  double at = 10;
  for (int kind = 0; kind < kKinds; ++kind) {
    const Colour& colour = colour_of(kind);
    svg += rectangle(at, 34, 12, 12, colour.fill) + label(at + 16, 44, colour.name);
    at += 34 + 7 * static_cast<double>(std::string(colour.name).size());
  }
  for (size_t index = 0; index < ranks.size(); ++index) {
    // The share of every slice that was spent on each kind.
    std::vector<std::array<double, kKinds>> slices(kSlices);
    for (const TimelineSpan& span : ranks[index].spans) {
      const int kind = span.waits ? kOpFamilies : static_cast<int>(span.family);
      const double scale = kSlices / end;
      const int last = std::min(kSlices - 1, static_cast<int>(span.end_s * scale));
      for (int slice = static_cast<int>(span.begin_s * scale); slice <= last; ++slice)
        slices[slice][kind] += std::min(span.end_s * scale, slice + 1.0) -
                               std::max<double>(span.begin_s * scale, slice);
    }
    const double top = kTop + kRow * static_cast<double>(index);
    svg += label(10, top + 22, "rank " + std::to_string(index));
    // One path per kind; slices alike are one rectangle.
    std::array<std::string, kKinds> paths;
    for (int begin = 0; begin < kSlices;) {
      int next = begin + 1;
      while (next < kSlices && slices[next] == slices[begin]) ++next;
      double y = top + kBar;
      for (int kind = 0; kind < kKinds; ++kind) {
        const double share = kBar * std::min(1.0, slices[begin][kind]);
        if (share < 0.05) continue;
        char move[80];
        std::snprintf(move, sizeof move, "M%d %.1fh%dv-%.1fh-%dz", kLeft + begin, y, next - begin,
                      share, next - begin);
        paths[kind] += move;
        y -= share;
      }
      begin = next;
    }
    for (int kind = 0; kind < kKinds; ++kind)
      if (!paths[kind].empty())
        svg += std::string("<path fill=\"") + colour_of(kind).fill + "\" d=\"" + paths[kind] +
               "\"/>\n";
    svg += label(kLeft + kSlices + 6, top + 22, seconds_text(ranks[index].seconds));
  }
  svg += label(kLeft, height - 10, "0 s") +
         label(kLeft + kSlices - 40, height - 10, seconds_text(end));
  return svg + "</svg>\n";
}

}  // namespace weft
