#include "parallel/communicator.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "parallel/bootstrap/flight_recorder.h"

namespace weft {

namespace {

// The buffer with the shape and dtype of `like`.
TensorView in_host(const Staging::Buffer& buffer, const TensorView& like) {
  return TensorView(buffer.memory.data(), like.dtype, like.shape());
}

// The profiler's zone of a post, with its bytes where a meter is installed.
ZoneScope zone_of(std::span<const Message> sends, std::span<const Message> receives) {
  double bytes = 0;
  const char* what = "";
  if (thread_meter())
    for (const std::span<const Message>& messages : {receives, sends})
      for (const Message& message : messages) {
        if (message.view.count() == 0) continue;
        bytes += static_cast<double>(message.view.bytes());
        what = weft::to_string(message.tag.kind).data();
      }
  return ZoneScope(Zone::kCommunication, -1, what, bytes);
}

}  // namespace

CommCounters::Count CommCounters::total(std::span<const Count> counts) {
  Count total;
  for (const Count& count : counts) {
    total.messages += count.messages;
    total.bytes += count.bytes;
  }
  return total;
}

struct Communicator::Shared {
  CommCounters counters;
  std::shared_ptr<FlightRecorder> recorder = std::make_shared<FlightRecorder>();
  Staging staging;
};

Communicator::Communicator(std::shared_ptr<Transport> transport)
    : transport_(std::move(transport)), shared_(std::make_shared<Shared>()) {
  ranks_.resize(transport_->size());
  std::iota(ranks_.begin(), ranks_.end(), 0);
  rank_ = transport_->rank();
  transport_->watch(shared_->recorder);
}

Communicator::Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Shared> shared,
                           std::vector<int> ranks, int rank, int group)
    : transport_(std::move(transport)),
      shared_(std::move(shared)),
      ranks_(std::move(ranks)),
      rank_(rank),
      group_(group) {}

Communicator Communicator::group(std::vector<int> world_ranks, int id) const {
  CHECK(id >= 1 && id <= kMaxGroup, "group", id);
  const auto own = std::find(world_ranks.begin(), world_ranks.end(), transport_->rank());
  CHECK(own != world_ranks.end(), "rank", transport_->rank(), "is not in the group");
  const int rank = static_cast<int>(own - world_ranks.begin());
  return {transport_, shared_, std::move(world_ranks), rank, id};
}

Communicator Communicator::beside() const {
  return {transport_->beside(), std::make_shared<Shared>(), ranks_, rank_, group_};
}

void Communicator::begin_job() {
  transport_->begin_job();
  end_job();
}

void Communicator::end_job() noexcept {
  without_throwing([&] { shared_->staging.trim(); });
  transport_->end_job();
}

int64_t Communicator::held_bytes() const {
  return transport_->held_bytes() + shared_->staging.held_bytes();
}

TagBits Communicator::tag_bits(const Tag& tag) const {
  return tag.bits(group_, group_ == 0 ? 0 : transport_->job());
}

Communicator::Pending Communicator::post(Stream& stream, std::span<const Message> sends,
                                         std::span<const Message> receives) {
  Pending pending;
  const ZoneScope zone = zone_of(sends, receives);
  const auto staged = [&](const TensorView& view) -> std::optional<Staging::Buffer> {
    if (view.count() == 0 || view.device == Device{} || transport_->takes_device_memory())
      return {};
    pending.stream_ = stream;
    return shared_->staging.take(view.bytes());
  };
  const auto add = [&](const Message& message, bool receive,
                       std::optional<Staging::Buffer> buffer) {
    if (message.view.count() == 0) return;
    CHECK(message.peer >= 0 && message.peer < size() && message.peer != rank_, "peer", message.peer,
          "of", size());
    CHECK(message.view.contiguous(), message.view.to_string_shape());
    const int peer = ranks_[message.peer];
    const int64_t bytes = static_cast<int64_t>(message.view.bytes());
    const MessageHeader header{.tag = tag_bits(message.tag), .bytes = bytes, .due_ns = 0};
    const uint64_t number = shared_->recorder->begin(receive, peer, header.tag, bytes);
    auto& counts = receive ? shared_->counters.received : shared_->counters.sent;
    CommCounters::Count& count = counts[static_cast<size_t>(message.tag.kind)];
    ++count.messages;
    count.bytes += bytes;
    const TensorView view = buffer ? in_host(*buffer, message.view) : message.view;
    pending.parts_.push_back({.staged = std::move(buffer),
                              .transfer = receive ? transport_->receive(stream, peer, header, view)
                                                  : transport_->send(stream, peer, header, view),
                              .tag = header.tag,
                              .bytes = bytes,
                              .peer = peer,
                              .receive = receive,
                              .number = number,
                              .view = message.view});
  };
  for (const Message& message : receives) add(message, true, staged(message.view));
  std::vector<std::optional<Staging::Buffer>> copies;
  bool waits = false;
  for (const Message& message : sends) {
    copies.push_back(staged(message.view));
    if (!copies.back()) continue;
    copy(stream, message.view, in_host(*copies.back(), message.view));
    waits = true;
  }
  if (waits) stream.sync();
  for (size_t i = 0; i < sends.size(); ++i) add(sends[i], false, std::move(copies[i]));
  return pending;
}

void Communicator::wait(Pending& pending) {
  const ZoneScope zone(
      Zone::kCommunication, -1,
      pending.empty() ? "wait" : weft::to_string(payload_of(pending.parts_.front().tag)).data());
  const auto begun = std::chrono::steady_clock::now();
  FlightRecorder& recorder = *shared_->recorder;
  for (Pending::Part& part : pending.parts_) {
    recorder.mark(part.number, FlightRecorder::State::kWaiting);
    MessageHeader header;
    try {
      header = transport_->wait(*part.transfer);
    } catch (...) {
      recorder.mark(part.number, FlightRecorder::State::kFailed);
      throw;
    }
    recorder.mark(part.number, FlightRecorder::State::kDone);
    if (part.receive && (header.tag != part.tag || header.bytes != part.bytes))
      throw Error(ErrorKind::kComm, "rank " + std::to_string(transport_->rank()) + " expected " +
                                        tag_text(part.tag) + ", " + std::to_string(part.bytes) +
                                        " bytes, from rank " + std::to_string(part.peer) +
                                        " and got " + tag_text(header.tag) + ", " +
                                        std::to_string(header.bytes) + " bytes");
    if (!part.staged) continue;
    if (part.receive) {
      copy(*pending.stream_, in_host(*part.staged, part.view), part.view);
      part.staged->read.record(*pending.stream_);
    }
    shared_->staging.give_back(std::move(*part.staged));
  }
  pending.parts_.clear();
  ++shared_->counters.waits;
  shared_->counters.waited_ns +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begun)
          .count();
}

void Communicator::exchange(Stream& stream, std::span<const Message> sends,
                            std::span<const Message> receives) {
  Pending pending = post(stream, sends, receives);
  wait(pending);
}

void Communicator::send(Stream& stream, int peer, const Tag& tag, const TensorView& view) {
  const Message message{peer, tag, view};
  exchange(stream, {&message, 1}, {});
}

void Communicator::receive(Stream& stream, int peer, const Tag& tag, const TensorView& view) {
  const Message message{peer, tag, view};
  exchange(stream, {}, {&message, 1});
}

void Communicator::abort(std::string_view why) noexcept { transport_->abort(why); }
const CommCounters& Communicator::counters() const { return shared_->counters; }
void Communicator::reset_counters() { shared_->counters = {}; }
const FlightRecorder& Communicator::recorder() const { return *shared_->recorder; }

}  // namespace weft
