#include "parallel/transport/processes/message_transport.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/device.h"
#include "parallel/bootstrap/control_plane.h"
#include "parallel/bootstrap/flight_recorder.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;
using Request = PointToPoint::Request;
using Lane = PointToPoint::Lane;

constexpr std::chrono::seconds kLetGoTime{1};
// A library may notice a dead peer before the control plane, which knows its last sign.
constexpr std::chrono::seconds kNamingTime{1};
// The times between two calls of the thread.
constexpr std::chrono::microseconds kDriveTime{50}, kFinishTime{1000};
// Between two looks for a message that may take hours.
constexpr std::chrono::milliseconds kIdleTime{20};

struct WireHeader {
  MessageHeader message;
  int64_t part = 0;  // the payload comes in messages of so many bytes, and a rest
};

// Calls post(data, bytes) for every part of a payload; both ends call it with the same numbers.
template <class Post>
void for_each_part(void* data, int64_t bytes, int64_t part, Post&& post) {
  for (int64_t at = 0; at < bytes; at += part)
    post(static_cast<char*>(data) + at, std::min(part, bytes - at));
}

// An incoming message whose header has arrived. Its payload is received into the memory of a posted
// receive, or into `held`, memory of the host, where none is posted yet.
struct Arrival {
  WireHeader header;
  std::vector<char> held;
  std::vector<Request> requests;  // those that are not finished
};

struct MessageTransfer final : Transfer {
  MessageTransfer(bool receives, int to_or_from, const MessageHeader& its,
                  std::function<void(MessageTransfer&)> let_go)
      : Transfer(receives), peer(to_or_from), header(its), give_up(std::move(let_go)) {}
  ~MessageTransfer() override {
    if (!over) give_up(*this);
  }

  int peer;
  MessageHeader header;
  std::function<void(MessageTransfer&)> give_up;
  void* data = nullptr;
  Device device{};
  // Memory of a device: the library may touch it once the work is over that the stream had been
  // given at the post.
  std::optional<Stream> stream;
  DeviceEvent free;
  std::list<MessageTransfer*>* queue = nullptr;  // PeerLink's, while it waits there
  // Used by a send; the wire header's memory must stay until it is sent.
  WireHeader wire;
  std::vector<Request> requests;  // those that are not finished: header and parts
  // Used by a receive.
  std::shared_ptr<Arrival> arrival;
  bool over = true;  // it has not begun, or its wait has returned
};

// The messages to and from a peer that are not over.
struct PeerLink {
  std::list<MessageTransfer*> unsent;  // sends whose memory a device still writes, oldest first,
                                       // and those posted after them
  WireHeader header;                   // of the message that comes next
  Request request = nullptr;
  std::list<MessageTransfer*> posted;            // receives without a message, oldest first
  std::deque<std::shared_ptr<Arrival>> early;    // messages without a receive
  std::vector<std::shared_ptr<Arrival>> coming;  // payloads under way
};

void nap(int naps) {
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(5 << std::min(naps, 5), 100)));
}

}  // namespace

struct MessageTransport::Impl {
  // While a rank's wait drives the library, the thread does not.
  struct Waiter {
    explicit Waiter(std::atomic<int>& count) : waiters(count) { ++waiters; }
    ~Waiter() { --waiters; }
    std::atomic<int>& waiters;
  };

  std::unique_ptr<PointToPoint> messages;
  int64_t largest_part;
  mutable std::mutex lock;
  int job = 0;
  int64_t strays = 0;
  std::vector<PeerLink> links;
  std::string aborted;         // the line that the job ended with
  std::string broken;          // the library's error, which ends the job unless `aborted` says more
  Clock::time_point naming{};  // how long that is waited for
  bool silent = false;         // the library is not called any more
  bool finishing = false;      // this rank waits for no more messages
  bool leaving = false;        // the thread ends
  int moving = 0;              // transfers whose wait has not returned
  Device device{};             // the one whose memory the last message of a device was in
  std::atomic<int> waiters = 0;
  std::condition_variable changed;
  std::mutex watched_lock;
  std::shared_ptr<const FlightRecorder> watched;
  std::thread driver;
  std::unique_ptr<ControlPlane> control;  // declared last: its thread uses the members above

  Impl(std::unique_ptr<PointToPoint> process, int64_t part)
      : messages(std::move(process)), largest_part(part), links(messages->size()) {
    CHECK(part > 0 && part <= INT_MAX, "parts of", part, "bytes");
    for (int peer = 0; peer < messages->size(); ++peer)
      if (peer != messages->rank()) listen(peer);
  }
  ~Impl() { stop_driver(); }

  bool finished(std::vector<Request>& requests) {
    while (!requests.empty() && messages->finished(requests.back())) requests.pop_back();
    return requests.empty();
  }

  void begin_moving() {
    if (moving++ == 0) changed.notify_one();
  }
  void end_moving(MessageTransfer& transfer) {
    transfer.over = true;
    --moving;
  }

  // The thread's work.
  void drive() {
    std::unique_lock guard(lock);
    while (!leaving) {
      if (moving == 0 || !aborted.empty() || !broken.empty() || silent) {
        changed.wait(guard);
        continue;
      }
      if (waiters == 0) attempt([this] { progress(); });
      guard.unlock();
      std::this_thread::sleep_for(finishing ? kFinishTime : kDriveTime);
      guard.lock();
    }
  }

  void stop_driver() {
    {
      const std::lock_guard guard(lock);
      leaving = true;
    }
    changed.notify_all();
    if (driver.joinable()) driver.join();
  }

  // Calls the library, unless it has failed before; every wait of this rank tells its error.
  template <class Work>
  void attempt(Work&& work) {
    if (!broken.empty()) return;
    try {
      work();
    } catch (const Error& error) {
      broken = error.what();
      naming = Clock::now() + kNamingTime;
    }
  }

  std::string last_operation() {
    const std::lock_guard guard(watched_lock);
    return watched ? watched->last() : "nothing yet";
  }
  void hear(const std::string& line) {
    const std::lock_guard guard(lock);
    if (aborted.empty()) aborted = line;
  }

  void listen(int peer) {
    PeerLink& link = links[peer];
    link.request = messages->receive(peer, Lane::kHeaders, &link.header, sizeof(WireHeader), {});
  }

  // Libraries copy device memory on the current device of the thread that calls them.
  void make_device_current() {
    if (device != Device{}) make_cuda_device_current(device.index);
  }

  // Sends what a device has written. Streams are asked and not waited for, so that neither a post
  // nor a wait for another message ends the overlap of the device's work with the host's.
  void send_written(int peer) {
    PeerLink& link = links[peer];
    while (!link.unsent.empty() && link.unsent.front()->free.done()) {
      MessageTransfer& transfer = *link.unsent.front();
      link.unsent.pop_front();
      transfer.queue = nullptr;
      const auto post = [&](Lane lane, const void* data, int64_t bytes, Device on) {
        transfer.requests.push_back(messages->send(peer, lane, data, bytes, on));
      };
      post(Lane::kHeaders, &transfer.wire, sizeof(WireHeader), {});
      for_each_part(transfer.data, transfer.header.bytes, largest_part,
                    [&](const void* data, int64_t bytes) {
                      post(Lane::kPayloads, data, bytes, transfer.device);
                    });
    }
  }

  // The oldest receive for the message whose header has come, or null.
  static MessageTransfer* receiver(const PeerLink& link) {
    const auto found = std::ranges::find_if(link.posted, [&](const MessageTransfer* one) {
      return one->header.tag == link.header.message.tag;
    });
    return found == link.posted.end() ? nullptr : *found;
  }

  // False where the message whose header has come goes to memory that a device still reads. Later
  // messages of the peer wait, too: their payloads come in the order of the headers.
  static bool can_accept(const PeerLink& link) {
    MessageTransfer* to = receiver(link);
    return !to || to->header.bytes != link.header.message.bytes || to->free.done();
  }

  // Sends, accepts every header that has arrived and tests the payloads under way.
  void progress() {
    make_device_current();
    messages->progress();
    for (int peer = 0; peer < messages->size(); ++peer) {
      if (peer == messages->rank()) continue;
      PeerLink& link = links[peer];
      send_written(peer);
      while (messages->finished(link.request) && can_accept(link)) {
        accept(peer);
        listen(peer);
      }
      std::erase_if(link.coming, [&](const auto& arrival) { return finished(arrival->requests); });
    }
  }

  // A header has arrived: posts the receive of its payload, into the oldest matching receive.
  void accept(int peer) {
    PeerLink& link = links[peer];
    auto arrival = std::make_shared<Arrival>();
    arrival->header = link.header;
    const MessageHeader& header = arrival->header.message;
    void* to = nullptr;
    Device on{};
    if (MessageTransfer* transfer = receiver(link)) {
      if (transfer->header.bytes == header.bytes) {
        to = transfer->data;
        on = transfer->device;
      }
      transfer->arrival = arrival;
      transfer->queue = nullptr;
      link.posted.remove(transfer);
    } else if (of_earlier_job(header.tag, job)) {
      ++strays;
    } else {
      link.early.push_back(arrival);
    }
    if (!to) {  // no receive is posted yet, or it expects another size
      arrival->held.resize(static_cast<size_t>(header.bytes));
      to = arrival->held.data();
    }
    link.coming.push_back(arrival);
    for_each_part(to, header.bytes, arrival->header.part, [&](void* data, int64_t bytes) {
      arrival->requests.push_back(messages->receive(peer, Lane::kPayloads, data, bytes, on));
    });
  }

  // Throws why this rank's job has ended, if it has.
  void require_job() const {
    if (!aborted.empty()) throw Error(ErrorKind::kComm, aborted);
    if (!broken.empty() && Clock::now() > naming) throw Error(ErrorKind::kComm, broken);
  }

  // The oldest message with this tag that no receive was posted for.
  static auto early(PeerLink& link, const TagBits& tag) {
    return std::ranges::find_if(
        link.early, [&](const auto& arrival) { return arrival->header.message.tag == tag; });
  }

  // True where the library may not touch a transfer's memory yet, as far as is known here.
  bool waits_for_device(const MessageTransfer& transfer) const {
    const std::lock_guard guard(lock);
    return transfer.queue && transfer.stream && aborted.empty();
  }

  // True where the message of a transfer has gone, or come.
  bool ended(MessageTransfer& transfer) {
    if (transfer.receive) return transfer.arrival && transfer.arrival->requests.empty();
    return !transfer.queue && finished(transfer.requests);
  }

  // True where the library no longer uses a transfer's memory.
  bool released(MessageTransfer& transfer) {
    if (!transfer.receive) return finished(transfer.requests);
    return !transfer.arrival || !transfer.arrival->held.empty() ||
           finished(transfer.arrival->requests);
  }

  // Lets go of a transfer that is destroyed before its wait. The library may be reading or writing
  // its memory: it is given a second to end that. Where it does not, because the job has failed, it
  // is never called again, so that it cannot touch the memory later.
  void let_go(MessageTransfer& transfer) noexcept {
    without_throwing([&] {
      const auto limit = Clock::now() + kLetGoTime;
      for (int naps = 0;; ++naps) {
        {
          const std::lock_guard guard(lock);
          if (transfer.queue) transfer.queue->remove(&transfer);
          transfer.queue = nullptr;
          if (!transfer.over) end_moving(transfer);
          if (silent) return;
          silent = true;  // also where the library fails in the next calls
          const bool free = released(transfer);
          if (!free) progress();
          silent = !free && Clock::now() > limit;
          if (silent && aborted.empty()) {
            aborted = "rank " + std::to_string(messages->rank()) + " gave up a message that rank " +
                      std::to_string(transfer.peer) + " does not end";
            control->fail(aborted);
          }
          if (free) return;
        }
        nap(naps);
      }
    });
  }

  std::unique_ptr<MessageTransfer> make_transfer(bool receives, Stream& stream, int peer,
                                                 const MessageHeader& header,
                                                 const TensorView& view) {
    auto transfer = std::make_unique<MessageTransfer>(
        receives, peer, header, [this](MessageTransfer& one) { let_go(one); });
    transfer->data = view.data;
    transfer->device = view.device;
    if (view.device != Device{}) {
      device = view.device;
      transfer->stream = stream;
      transfer->free.record(stream);
    }
    transfer->over = false;
    begin_moving();
    return transfer;
  }
};

MessageTransport::MessageTransport(ProcessMessages process, const MessageOptions& options)
    : impl_(std::make_unique<Impl>(std::move(process.messages), options.largest_part)) {
  Impl& impl = *impl_;
  prctl(PR_SET_TIMERSLACK, 1000);  // naps of microseconds, not of fifty
  const ControlReports reports{.last_operation = [&impl] { return impl.last_operation(); },
                               .warning = options.warning,
                               .failure = [&impl](const std::string& line) { impl.hear(line); },
                               .stuck = options.stuck};
  impl.control = std::make_unique<ControlPlane>(
      rank(), size(), options.interfaces.empty() ? process.interfaces : options.interfaces,
      process.share, reports, settings_for_timeout(options.heartbeat_timeout_s));
  if (options.progress_thread) impl.driver = std::thread([&impl] { impl.drive(); });
}

MessageTransport::~MessageTransport() = default;

int MessageTransport::rank() const { return impl_->messages->rank(); }
int MessageTransport::size() const { return impl_->messages->size(); }
bool MessageTransport::takes_device_memory() const {
  return impl_->messages->takes_device_memory();
}

void MessageTransport::watch(std::shared_ptr<const FlightRecorder> recorder) {
  const std::lock_guard guard(impl_->watched_lock);
  impl_->watched = std::move(recorder);
}

std::unique_ptr<Transfer> MessageTransport::send(Stream& stream, int peer,
                                                 const MessageHeader& header,
                                                 const TensorView& view) {
  Impl& impl = *impl_;
  const std::lock_guard guard(impl.lock);
  auto transfer = impl.make_transfer(false, stream, peer, header, view);
  transfer->wire = {header, impl.largest_part};
  transfer->queue = &impl.links[peer].unsent;
  transfer->queue->push_back(transfer.get());
  impl.attempt([&] {
    impl.make_device_current();
    impl.send_written(peer);
  });
  return transfer;
}

std::unique_ptr<Transfer> MessageTransport::receive(Stream& stream, int peer,
                                                    const MessageHeader& expected,
                                                    const TensorView& view) {
  Impl& impl = *impl_;
  const std::lock_guard guard(impl.lock);
  auto transfer = impl.make_transfer(true, stream, peer, expected, view);
  PeerLink& link = impl.links[peer];
  if (const auto early = Impl::early(link, expected.tag); early != link.early.end()) {
    transfer->arrival = *early;
    link.early.erase(early);
  } else {
    transfer->queue = &link.posted;
    link.posted.push_back(transfer.get());
  }
  return transfer;
}

MessageHeader MessageTransport::wait(Transfer& under_way) {
  Impl& impl = *impl_;
  auto& transfer = static_cast<MessageTransfer&>(under_way);
  // Nothing can move before; the thread drives other messages meanwhile.
  if (impl.waits_for_device(transfer)) transfer.free.sync();
  const Impl::Waiter waiter(impl.waiters);
  for (int naps = 0;; ++naps) {
    {
      const std::lock_guard guard(impl.lock);
      bool over = false;
      if (impl.aborted.empty())
        impl.attempt([&] {
          impl.progress();
          over = impl.ended(transfer);
        });
      impl.require_job();
      if (over) {
        impl.end_moving(transfer);
        break;
      }
    }
    nap(naps);
  }
  if (!transfer.receive) return transfer.header;
  const Arrival& arrival = *transfer.arrival;
  const MessageHeader& header = arrival.header.message;
  if (arrival.held.empty() || header.bytes != transfer.header.bytes) return header;
  // A copy of pageable memory has read it when the call returns.
  if (transfer.stream)
    cuda_copy_bytes(*transfer.stream, arrival.held.data(), transfer.data, arrival.held.size());
  else
    std::memcpy(transfer.data, arrival.held.data(), arrival.held.size());
  return header;
}

void MessageTransport::await_message(int peer, const TagBits& tag) {
  Impl& impl = *impl_;
  for (;; std::this_thread::sleep_for(kIdleTime)) {
    const std::lock_guard guard(impl.lock);
    if (impl.aborted.empty()) impl.attempt([&] { impl.progress(); });
    impl.require_job();
    if (PeerLink& link = impl.links[peer]; Impl::early(link, tag) != link.early.end()) return;
  }
}

void MessageTransport::abort(std::string_view why) noexcept {
  without_throwing([&] {
    const std::lock_guard guard(impl_->lock);
    if (!impl_->aborted.empty()) return;
    impl_->aborted = why.empty() ? "aborted" : std::string(why);
    impl_->control->fail(impl_->aborted);
  });
}

std::string MessageTransport::failure() const {
  const std::lock_guard guard(impl_->lock);
  if (!impl_->aborted.empty()) return impl_->aborted;
  return Clock::now() > impl_->naming ? impl_->broken : "";
}

int MessageTransport::job() const { return impl_->job; }
int64_t MessageTransport::strays() const {
  const std::lock_guard guard(impl_->lock);
  return impl_->strays;
}
int64_t MessageTransport::held_bytes() const {
  const std::lock_guard guard(impl_->lock);
  int64_t bytes = 0;
  for (const PeerLink& link : impl_->links)
    for (const auto& arrival : link.early) bytes += static_cast<int64_t>(arrival->held.size());
  return bytes;
}

void MessageTransport::begin_job() {
  const std::lock_guard guard(impl_->lock);
  impl_->job = next_job(impl_->job);
  // A payload that is under way is kept by PeerLink::coming until it has come.
  for (PeerLink& link : impl_->links)
    impl_->strays += static_cast<int64_t>(std::erase_if(link.early, [&](const auto& arrival) {
      return of_earlier_job(arrival->header.message.tag, impl_->job);
    }));
}

std::optional<int64_t> MessageTransport::job_clock_ns() const {
  return impl_->control->job_clock_ns();
}

std::optional<int64_t> MessageTransport::take_number(int series) {
  return impl_->control->take_number(series);
}

void MessageTransport::finish() {
  Impl& impl = *impl_;
  {
    // The library may not have sent this rank's last messages yet, so the thread goes on.
    const std::lock_guard guard(impl.lock);
    impl.finishing = true;
    impl.begin_moving();
  }
  impl.control->await_all();  // sleeps; a barrier of the library would spin
  impl.stop_driver();
  {
    const std::lock_guard guard(impl.lock);
    for (PeerLink& link : impl.links)
      if (link.request) impl.messages->cancel(link.request);
  }
  impl.messages->finish();
  impl.control.reset();  // a peer that dies in between is still noticed
}

}  // namespace weft
