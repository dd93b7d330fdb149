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
#include <string>
#include <thread>
#include <vector>

#include "kernels/check.h"
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
// receive, or into `held` where none is posted yet.
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
  // Used by a send; the wire header's memory must stay until it is sent.
  WireHeader wire;
  std::vector<Request> requests;  // those that are not finished: header and parts
  // Used by a receive.
  void* data = nullptr;
  std::shared_ptr<Arrival> arrival;
  std::list<MessageTransfer*>* posted = nullptr;  // the list it waits in, until claimed
  bool over = false;                              // its wait has returned
};

// The messages of a peer that have come, and the receives that wait for it.
struct PeerLink {
  WireHeader header;  // of the message that comes next
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
    link.request = messages->receive(peer, Lane::kHeaders, &link.header, sizeof(WireHeader));
  }

  // Accepts every header that has arrived and tests the payloads under way.
  void progress() {
    messages->progress();
    for (int peer = 0; peer < messages->size(); ++peer) {
      if (peer == messages->rank()) continue;
      PeerLink& link = links[peer];
      while (messages->finished(link.request)) {
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
    const auto posted = std::find_if(link.posted.begin(), link.posted.end(), [&](const auto* one) {
      return one->header.tag == header.tag;
    });
    void* to = nullptr;
    if (posted != link.posted.end()) {
      MessageTransfer& transfer = **posted;
      if (transfer.header.bytes == header.bytes) to = transfer.data;
      transfer.arrival = arrival;
      transfer.posted = nullptr;
      link.posted.erase(posted);
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
      arrival->requests.push_back(messages->receive(peer, Lane::kPayloads, data, bytes));
    });
  }

  // True where the message of a transfer has gone, or come.
  bool ended(MessageTransfer& transfer) {
    if (transfer.receive) return transfer.arrival && transfer.arrival->requests.empty();
    return finished(transfer.requests);
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
          if (transfer.posted) transfer.posted->remove(&transfer);
          transfer.posted = nullptr;
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

  std::unique_ptr<MessageTransfer> make_transfer(bool receives, int peer,
                                                 const MessageHeader& header) {
    return std::make_unique<MessageTransfer>(receives, peer, header,
                                             [this](MessageTransfer& one) { let_go(one); });
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

void MessageTransport::watch(std::shared_ptr<const FlightRecorder> recorder) {
  const std::lock_guard guard(impl_->watched_lock);
  impl_->watched = std::move(recorder);
}

std::unique_ptr<Transfer> MessageTransport::send(Stream&, int peer, const MessageHeader& header,
                                                 const TensorView& view) {
  Impl& impl = *impl_;
  const std::lock_guard guard(impl.lock);
  auto transfer = impl.make_transfer(false, peer, header);
  transfer->wire = {header, impl.largest_part};
  const auto post = [&](Lane lane, const void* data, int64_t bytes) {
    transfer->requests.push_back(impl.messages->send(peer, lane, data, bytes));
  };
  impl.attempt([&] {
    post(Lane::kHeaders, &transfer->wire, sizeof(WireHeader));
    for_each_part(view.data, header.bytes, impl.largest_part,
                  [&](const void* data, int64_t bytes) { post(Lane::kPayloads, data, bytes); });
  });
  impl.begin_moving();
  return transfer;
}

std::unique_ptr<Transfer> MessageTransport::receive(Stream&, int peer,
                                                    const MessageHeader& expected,
                                                    const TensorView& view) {
  Impl& impl = *impl_;
  const std::lock_guard guard(impl.lock);
  auto transfer = impl.make_transfer(true, peer, expected);
  transfer->data = view.data;
  PeerLink& link = impl.links[peer];
  const auto early = std::find_if(link.early.begin(), link.early.end(), [&](const auto& arrival) {
    return arrival->header.message.tag == expected.tag;
  });
  if (early != link.early.end()) {
    transfer->arrival = *early;
    link.early.erase(early);
  } else {
    transfer->posted = &link.posted;
    link.posted.push_back(transfer.get());
  }
  impl.begin_moving();
  return transfer;
}

MessageHeader MessageTransport::wait(Transfer& under_way) {
  Impl& impl = *impl_;
  auto& transfer = static_cast<MessageTransfer&>(under_way);
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
      if (!impl.aborted.empty()) throw Error(ErrorKind::kComm, impl.aborted);
      if (!impl.broken.empty() && Clock::now() > impl.naming)
        throw Error(ErrorKind::kComm, impl.broken);
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
  if (!arrival.held.empty() && header.bytes == transfer.header.bytes)
    std::memcpy(transfer.data, arrival.held.data(), arrival.held.size());
  return header;
}

void MessageTransport::abort(std::string_view why) noexcept {
  without_throwing([&] {
    const std::lock_guard guard(impl_->lock);
    if (!impl_->aborted.empty()) return;
    impl_->aborted = why.empty() ? "aborted" : std::string(why);
    impl_->control->fail(impl_->aborted);
  });
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
