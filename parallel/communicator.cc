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

void CommCounters::add(const CommCounters& other, int64_t times) {
  for (const auto& [to, from] : {std::pair{&sent, &other.sent}, {&received, &other.received}})
    for (size_t kind = 0; kind < to->size(); ++kind) {
      (*to)[kind].messages += times * (*from)[kind].messages;
      (*to)[kind].bytes += times * (*from)[kind].bytes;
    }
  waits += times * other.waits;
  waited_ns += times * other.waited_ns;
  enqueued += times * other.enqueued;
  blocked += times * other.blocked;
}

CommCounters CommCounters::since(const CommCounters& before) const {
  CommCounters out = *this;
  out.add(before, -1);
  return out;
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

void Communicator::open_exchanges() {
  if (size() > 1) transport_->open_group(group_, ranks_);
}

void Communicator::open_messages(std::span<const int> to, std::span<const int> from) {
  const auto in_world = [&](std::span<const int> members) {
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back(ranks_[member]);
    return ranks;
  };
  transport_->open_pairs(in_world(to), in_world(from));
}

void Communicator::close_messages(Stream& stream) {
  stream.sync();
  require_job();
  transport_->close_pairs();
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

void Communicator::align_jobs(Stream& stream) {
  CHECK(group_ == 0, "group", group_);
  std::vector<int64_t> jobs(size());
  std::vector<TensorView> views;
  for (int64_t& job : jobs) views.push_back({&job, DType::kI64, {1}});
  jobs[rank_] = transport_->job();
  all_gather_v(stream, {.topic = Topic::kJob}, views[rank_], views);
  const auto last = static_cast<int>(*std::ranges::max_element(jobs, earlier_job));
  while (transport_->job() != last) transport_->begin_job();
}

void Communicator::begin_anew(Stream& stream) {
  stream.sync();
  align_jobs(stream);  // no rank goes on before all are here
  transport_->close_all();
}

int64_t Communicator::held_bytes() const {
  return transport_->held_bytes() + shared_->staging.held_bytes();
}

TagBits Communicator::tag_bits(const Tag& tag) const {
  return tag.bits(group_, group_ == 0 ? 0 : transport_->job());
}

Communicator::Pending Communicator::Pending::take_first() {
  CHECK(!parts_.empty(), "no message is left");
  Pending first;
  first.stream_ = stream_;
  first.parts_.push_back(std::move(parts_.front()));
  parts_.erase(parts_.begin());
  return first;
}

// Counts a message that is posted, and notes it in the recorder.
Communicator::Pending::Part Communicator::make_part(const Message& message, bool receive) {
  CHECK(message.peer >= 0 && message.peer < size() && message.peer != rank_, "peer", message.peer,
        "of", size());
  CHECK(message.view.contiguous(), message.view.to_string_shape());
  const int peer = ranks_[message.peer];
  const auto bytes = static_cast<int64_t>(message.view.bytes());
  const TagBits tag = tag_bits(message.tag);
  auto& counts = receive ? shared_->counters.received : shared_->counters.sent;
  CommCounters::Count& count = counts[static_cast<size_t>(message.tag.kind)];
  ++count.messages;
  count.bytes += bytes;
  return {.tag = tag,
          .bytes = bytes,
          .peer = peer,
          .receive = receive,
          .number = shared_->recorder->begin(receive, peer, tag, bytes),
          .view = message.view};
}

// Lets the device move these parts, where it can.
void Communicator::enqueue(Stream& stream, PostOrder order, std::span<Pending::Part*> parts) {
  std::vector<DeviceMessage> messages;
  for (const Pending::Part* part : parts)
    messages.push_back({part->receive, part->peer, part->bytes, part->view.data, part->tag});
  const std::shared_ptr<Transfer> transfer =
      transport_->enqueue(stream, order, group_, ranks_, messages);
  if (!transfer) return;
  shared_->counters.enqueued += static_cast<int64_t>(parts.size());
  for (Pending::Part* part : parts) {
    part->transfer = transfer;
    part->enqueued = true;
  }
}

bool Communicator::sum_by_library(Stream& stream, const Tag& tag, const TensorView& x) {
  if (x.device == Device{} || x.count() == 0) return false;
  const std::shared_ptr<Transfer> transfer = transport_->enqueue_sum(stream, group_, ranks_, x);
  if (!transfer) return false;
  const Message all{(rank_ + 1) % size(), tag, x};
  Pending pending;
  for (const bool receive : {true, false}) {
    Pending::Part& part = pending.parts_.emplace_back(make_part(all, receive));
    part.transfer = transfer;
    part.enqueued = true;
  }
  shared_->counters.enqueued += 2;
  wait(pending);
  return true;
}

// Posts the parts that no device moves: receives, then sends, whose staged copies the host awaits.
void Communicator::post_through_transport(Stream& stream, Pending& pending) {
  const auto post = [&](Pending::Part& part) {
    const MessageHeader header{.tag = part.tag, .bytes = part.bytes, .due_ns = 0};
    const TensorView view = part.staged ? in_host(*part.staged, part.view) : part.view;
    part.transfer = part.receive ? transport_->receive(stream, part.peer, header, view)
                                 : transport_->send(stream, part.peer, header, view);
  };
  bool waits = false;
  for (Pending::Part& part : pending.parts_) {
    if (part.enqueued) continue;
    if (part.view.device != Device{} && !transport_->takes_device_memory()) {
      pending.stream_ = stream;
      part.staged = shared_->staging.take(part.view.bytes());
      if (!part.receive) copy(stream, part.view, in_host(*part.staged, part.view));
      waits |= !part.receive;
    }
    if (part.receive) post(part);
  }
  if (waits) stream.sync();
  shared_->counters.blocked += waits;
  for (Pending::Part& part : pending.parts_)
    if (!part.receive && !part.enqueued) post(part);
}

Communicator::Pending Communicator::post(Stream& stream, std::span<const Message> sends,
                                         std::span<const Message> receives, PostOrder order) {
  Pending pending;
  const ZoneScope zone = zone_of(sends, receives);
  for (const bool receive : {true, false})
    for (const Message& message : receive ? receives : sends)
      if (message.view.count() > 0) pending.parts_.push_back(make_part(message, receive));
  std::vector<Pending::Part*> on_device;
  for (Pending::Part& part : pending.parts_)
    if (part.view.device != Device{}) on_device.push_back(&part);
  if (order == PostOrder::kPair)
    for (Pending::Part*& part : on_device) enqueue(stream, order, {&part, 1});
  else if (!on_device.empty())
    enqueue(stream, order, on_device);
  post_through_transport(stream, pending);
  return pending;
}

void Communicator::wait(Pending& pending) {
  const ZoneScope zone(
      Zone::kCommunication, -1,
      pending.empty() ? "wait" : weft::to_string(payload_of(pending.parts_.front().tag)).data());
  const auto begun = std::chrono::steady_clock::now();
  FlightRecorder& recorder = *shared_->recorder;
  bool blocks = false;
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
    blocks |= !part.enqueued;
    if (part.receive && !part.enqueued && (header.tag != part.tag || header.bytes != part.bytes))
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
  shared_->counters.blocked += blocks;
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
  Pending pending = post(stream, {&message, 1}, {}, PostOrder::kPair);
  wait(pending);
}

void Communicator::receive(Stream& stream, int peer, const Tag& tag, const TensorView& view) {
  const Message message{peer, tag, view};
  Pending pending = post(stream, {}, {&message, 1}, PostOrder::kPair);
  wait(pending);
}

void Communicator::await(int peer, const Tag& tag) const {
  transport_->await_message(ranks_[peer], tag_bits(tag));
}

void Communicator::abort(std::string_view why) noexcept { transport_->abort(why); }
const CommCounters& Communicator::counters() const { return shared_->counters; }
void Communicator::require_job() const {
  const std::string why = transport_->failure();
  if (!why.empty()) throw Error(ErrorKind::kComm, why);
}
void Communicator::count_again(const CommCounters& once, int times) {
  shared_->counters.add(once, times);
}
void Communicator::reset_counters() { shared_->counters = {}; }
const FlightRecorder& Communicator::recorder() const { return *shared_->recorder; }

}  // namespace weft
