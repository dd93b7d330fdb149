#include "parallel/transport/mpi.h"

#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "parallel/bootstrap/control_plane.h"
#include "parallel/bootstrap/flight_recorder.h"
#include "parallel/bootstrap/launch.h"
#include "parallel/bootstrap/startup_watch.h"

namespace weft {

namespace {

// MPI tags: one for headers, which arrive in order, one for the error line of an aborted job, and a
// tag per payload, made of its number.
constexpr int kHeaderTag = 0, kAbortTag = 1, kFirstPayloadTag = 2, kPayloadTags = 1 << 20;
constexpr size_t kAbortBytes = 1024;
constexpr double kStartupSeconds = 60;
constexpr std::chrono::seconds kLetGoTime{1};
constexpr std::chrono::microseconds kDriveTime{50};  // between two calls of the thread

struct WireHeader {
  MessageHeader message;
  int64_t number = 0;  // counts the sender's messages to this peer
  int64_t part = 0;    // the payload comes in MPI messages of so many bytes, and a rest
};

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorKind::kComm, std::string(call) + ": " + std::string(text, length));
}

int payload_tag(int64_t number) {
  return kFirstPayloadTag + static_cast<int>(number % kPayloadTags);
}

// Calls post(data, bytes) for every part of a payload; both ends call it with the same numbers, and
// MPI keeps the order of messages with one tag.
template <class Post>
void for_each_part(void* data, int64_t bytes, int64_t part, Post&& post) {
  for (int64_t at = 0; at < bytes; at += part)
    post(static_cast<char*>(data) + at, static_cast<int>(std::min(part, bytes - at)));
}

bool finished(MPI_Request& request) {
  int done = 0;
  if (request == MPI_REQUEST_NULL) return true;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done;
}

bool finished(std::vector<MPI_Request>& requests) {
  while (!requests.empty() && finished(requests.back())) requests.pop_back();
  return requests.empty();
}

// An incoming message whose header has arrived. Its payload is received into the memory of a posted
// receive, or into `held` where none is posted yet.
struct Arrival {
  WireHeader header;
  std::vector<char> held;
  std::vector<MPI_Request> requests;  // those that are not finished
};

class MpiTransport;
struct MpiTransfer final : Transfer {
  MpiTransfer(MpiTransport& owner, bool receives) : Transfer(receives), transport(owner) {}
  ~MpiTransfer() override;

  MpiTransport& transport;
  int peer = 0;
  MessageHeader header;
  // Used by a send; the wire header's memory must stay until it is sent.
  WireHeader wire;
  std::vector<MPI_Request> requests;  // those that are not finished: header and parts
  // Used by a receive.
  void* data = nullptr;
  std::shared_ptr<Arrival> arrival;
  std::list<MpiTransfer*>* posted = nullptr;  // the list it waits in, until claimed
  bool over = false;                          // its wait has returned
};

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(const MpiOptions& options) : part_(options.largest_part) {
    CHECK(part_ > 0 && part_ <= INT_MAX, "parts of", part_, "bytes");
    // MPI_Init waits for every rank, however long.
    const Launch launch = detect_launch();
    const char* folder = std::getenv("PMIX_SERVER_TMPDIR");  // a folder of this job on this host
    const StartupWatch watch(folder ? folder : "", launch.rank, launch.ranks, launch.ranks_here,
                             kStartupSeconds, options.stuck);
    int given = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given), "MPI_Init_thread");
    if (given < MPI_THREAD_SERIALIZED)
      throw Error(ErrorKind::kComm, "this MPI cannot be called from several threads in turn");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    prctl(PR_SET_TIMERSLACK, 1000);  // naps of microseconds, not of fifty
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
    links_.resize(size_);
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) listen(peer);
    check_mpi(MPI_Irecv(abort_text_, kAbortBytes, MPI_BYTE, MPI_ANY_SOURCE, kAbortTag,
                        MPI_COMM_WORLD, &abort_request_),
              "MPI_Irecv");
    const auto share = [](const std::string& text) {
      char shared[256] = {};
      std::strncpy(shared, text.c_str(), sizeof shared - 1);
      check_mpi(MPI_Bcast(shared, sizeof shared, MPI_BYTE, 0, MPI_COMM_WORLD), "MPI_Bcast");
      return std::string(shared);
    };
    const ControlReports control{.last_operation = [this] { return last_operation(); },
                                 .warning = options.warning,
                                 .failure = [this](const std::string& line) { hear(line); },
                                 .stuck = options.stuck};
    // Uses the network that the user chose for MPI, or the loopback where all ranks are on one
    // host.
    const char* chosen = std::getenv("OMPI_MCA_btl_tcp_if_include");
    const std::string interfaces = chosen ? chosen : launch.one_host() ? "lo" : "";
    control_ = std::make_unique<ControlPlane>(rank_, size_, interfaces, share, control,
                                              settings_for_timeout(options.heartbeat_timeout_s));
    if (options.progress_thread) driver_ = std::thread([this] { drive(); });
  }

  ~MpiTransport() override { stop_driver(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void watch(std::shared_ptr<const FlightRecorder> recorder) override {
    const std::lock_guard guard(watched_lock_);
    watched_ = std::move(recorder);
  }

  std::unique_ptr<Transfer> send(Stream&, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    const std::lock_guard guard(lock_);
    auto transfer = std::make_unique<MpiTransfer>(*this, false);
    transfer->peer = peer;
    transfer->header = header;
    transfer->wire = {header, links_[peer].sent++, part_};
    const auto post = [&](const void* data, int bytes, int tag) {
      MPI_Request& request = transfer->requests.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Isend(data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request), "MPI_Isend");
    };
    post(&transfer->wire, sizeof(WireHeader), kHeaderTag);
    for_each_part(view.data, header.bytes, part_, [&](const void* data, int bytes) {
      post(data, bytes, payload_tag(transfer->wire.number));
    });
    begin_moving();
    return transfer;
  }

  std::unique_ptr<Transfer> receive(Stream&, int peer, const MessageHeader& expected,
                                    const TensorView& view) override {
    const std::lock_guard guard(lock_);
    auto transfer = std::make_unique<MpiTransfer>(*this, true);
    transfer->peer = peer;
    transfer->header = expected;
    transfer->data = view.data;
    Link& link = links_[peer];
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
    begin_moving();
    return transfer;
  }

  MessageHeader wait(Transfer& under_way) override {
    auto& transfer = static_cast<MpiTransfer&>(under_way);
    const Waiter waiter(waiters_);
    for (int naps = 0;; ++naps) {
      {
        const std::lock_guard guard(lock_);
        if (aborted_.empty()) progress();
        if (!aborted_.empty()) throw Error(ErrorKind::kComm, aborted_);
        if (ended(transfer)) {
          end_moving(transfer);
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

  // Lets go of a transfer that is destroyed before its wait. MPI may be reading or writing its
  // memory: it is given a second to end that. Where it does not, because the job has failed, it is
  // never called again, so that it cannot touch the memory later.
  void let_go(MpiTransfer& transfer) noexcept {
    without_throwing([&] {
      const auto limit = std::chrono::steady_clock::now() + kLetGoTime;
      for (int naps = 0;; ++naps) {
        {
          const std::lock_guard guard(lock_);
          if (transfer.posted) transfer.posted->remove(&transfer);
          transfer.posted = nullptr;
          if (!transfer.over) end_moving(transfer);
          if (silent_ || released(transfer)) return;
          silent_ = true;  // also where MPI fails in the next call
          progress();
          silent_ = std::chrono::steady_clock::now() > limit;
          if (silent_ && aborted_.empty()) {
            aborted_ = "rank " + std::to_string(rank_) + " gave up a message that rank " +
                       std::to_string(transfer.peer) + " does not end";
            control_->fail(aborted_);
          }
        }
        nap(naps);
      }
    });
  }

  void abort(std::string_view why) noexcept override {
    without_throwing([&] {
      const std::lock_guard guard(lock_);
      if (!aborted_.empty()) return;
      aborted_ = why.empty() ? "aborted" : std::string(why);
      control_->fail(aborted_);  // reaches every rank where MPI itself has failed
      send_abort();
    });
  }

  int job() const override { return job_; }
  int64_t strays() const override {
    const std::lock_guard guard(lock_);
    return strays_;
  }
  int64_t held_bytes() const override {
    const std::lock_guard guard(lock_);
    int64_t bytes = 0;
    for (const Link& link : links_)
      for (const auto& arrival : link.early) bytes += static_cast<int64_t>(arrival->held.size());
    return bytes;
  }

  void begin_job() override {
    const std::lock_guard guard(lock_);
    job_ = next_job(job_);
    // A payload that is under way is kept by Link::coming until it has come.
    for (Link& link : links_)
      strays_ += static_cast<int64_t>(std::erase_if(link.early, [&](const auto& arrival) {
        return of_earlier_job(arrival->header.message.tag, job_);
      }));
  }

  std::optional<int64_t> job_clock_ns() const override { return control_->job_clock_ns(); }

  void finish() {
    control_->await_all();  // sleeps; MPI's own barrier would spin
    stop_driver();
    {
      const std::lock_guard guard(lock_);
      for (Link& link : links_)
        if (link.request != MPI_REQUEST_NULL) cancel(link.request);
      if (abort_request_ != MPI_REQUEST_NULL) cancel(abort_request_);
    }
    MPI_Finalize();
    control_.reset();  // a peer that dies in between is still noticed
  }

 private:
  // While a rank's wait drives MPI, the thread does not.
  struct Waiter {
    explicit Waiter(std::atomic<int>& count) : waiters(count) { ++waiters; }
    ~Waiter() { --waiters; }
    std::atomic<int>& waiters;
  };

  static void nap(int naps) {
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(5 << std::min(naps, 5), 100)));
  }

  void begin_moving() {
    if (moving_++ == 0) changed_.notify_one();
  }
  void end_moving(MpiTransfer& transfer) {
    transfer.over = true;
    --moving_;
  }

  // The thread's work.
  void drive() {
    std::unique_lock guard(lock_);
    while (!leaving_) {
      if (moving_ == 0 || !aborted_.empty() || silent_) {
        changed_.wait(guard);
        continue;
      }
      try {
        if (waiters_ == 0) progress();
      } catch (const Error&) {  // the rank's next wait meets the same error
        return;
      }
      guard.unlock();
      std::this_thread::sleep_for(kDriveTime);
      guard.lock();
    }
  }

  void stop_driver() {
    {
      const std::lock_guard guard(lock_);
      leaving_ = true;
    }
    changed_.notify_all();
    if (driver_.joinable()) driver_.join();
  }

  // True where MPI no longer uses a transfer's memory.
  static bool released(MpiTransfer& transfer) {
    if (!transfer.receive) return finished(transfer.requests);
    return !transfer.arrival || !transfer.arrival->held.empty() ||
           finished(transfer.arrival->requests);
  }

  void send_abort() {
    if (silent_) return;
    std::string text = aborted_.substr(0, kAbortBytes - 1);
    text.resize(kAbortBytes);
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer != rank_) {
        abort_texts_.push_back(text);
        MPI_Isend(abort_texts_.back().data(), kAbortBytes, MPI_BYTE, peer, kAbortTag,
                  MPI_COMM_WORLD, &request);
      }
    }
    for (int i = 0; i < 20 && !silent_; ++i) {  // gives the messages time to be sent
      progress();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string last_operation() {
    const std::lock_guard guard(watched_lock_);
    return watched_ ? watched_->last() : "nothing yet";
  }
  void hear(const std::string& line) {
    const std::lock_guard guard(lock_);
    if (aborted_.empty()) aborted_ = line;
  }

  struct Link {
    int64_t sent = 0;
    WireHeader header;  // of the message that comes next
    MPI_Request request = MPI_REQUEST_NULL;
    std::list<MpiTransfer*> posted;                // receives without a message, oldest first
    std::deque<std::shared_ptr<Arrival>> early;    // messages without a receive
    std::vector<std::shared_ptr<Arrival>> coming;  // payloads under way
  };

  static void cancel(MPI_Request& request) {
    MPI_Cancel(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }

  void listen(int peer) {
    Link& link = links_[peer];
    check_mpi(MPI_Irecv(&link.header, sizeof(WireHeader), MPI_BYTE, peer, kHeaderTag,
                        MPI_COMM_WORLD, &link.request),
              "MPI_Irecv");
  }

  // Accepts every header that has arrived and tests the payloads under way.
  void progress() {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      Link& link = links_[peer];
      while (finished(link.request)) {
        accept(peer);
        listen(peer);
      }
      std::erase_if(link.coming, [](const auto& arrival) { return finished(arrival->requests); });
    }
    if (aborted_.empty() && finished(abort_request_))
      aborted_ = std::string(abort_text_, strnlen(abort_text_, kAbortBytes));
  }

  // A header has arrived: posts the receive of its payload, into the oldest matching receive.
  void accept(int peer) {
    Link& link = links_[peer];
    auto arrival = std::make_shared<Arrival>();
    arrival->header = link.header;
    const MessageHeader& header = arrival->header.message;
    const auto posted = std::find_if(link.posted.begin(), link.posted.end(), [&](const auto* one) {
      return one->header.tag == header.tag;
    });
    void* to = nullptr;
    if (posted != link.posted.end()) {
      MpiTransfer& transfer = **posted;
      if (transfer.header.bytes == header.bytes) to = transfer.data;
      transfer.arrival = arrival;
      transfer.posted = nullptr;
      link.posted.erase(posted);
    } else if (of_earlier_job(header.tag, job_)) {
      ++strays_;
    } else {
      link.early.push_back(arrival);
    }
    if (!to) {  // no receive is posted yet, or it expects another size
      arrival->held.resize(static_cast<size_t>(header.bytes));
      to = arrival->held.data();
    }
    const int tag = payload_tag(arrival->header.number);
    for_each_part(to, header.bytes, arrival->header.part, [&](void* data, int bytes) {
      MPI_Request& request = arrival->requests.emplace_back(MPI_REQUEST_NULL);
      check_mpi(MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request), "MPI_Irecv");
    });
    link.coming.push_back(std::move(arrival));
  }

  static bool ended(MpiTransfer& transfer) {
    if (transfer.receive) return transfer.arrival && transfer.arrival->requests.empty();
    return finished(transfer.requests);
  }

  const int64_t part_;  // the largest MPI message's bytes
  mutable std::mutex lock_;
  int rank_ = 0, size_ = 1, job_ = 0;
  int64_t strays_ = 0;
  std::vector<Link> links_;
  char abort_text_[kAbortBytes] = {};
  MPI_Request abort_request_ = MPI_REQUEST_NULL;
  std::string aborted_;
  bool silent_ = false;   // MPI is not called any more
  bool leaving_ = false;  // the thread ends
  int moving_ = 0;        // transfers whose wait has not returned
  std::atomic<int> waiters_ = 0;
  std::condition_variable changed_;
  std::list<std::string> abort_texts_;
  std::mutex watched_lock_;
  std::shared_ptr<const FlightRecorder> watched_;
  std::thread driver_;
  std::unique_ptr<ControlPlane> control_;  // declared last: its thread uses the members above
};

MpiTransfer::~MpiTransfer() {
  if (!over) transport.let_go(*this);
}

std::shared_ptr<MpiTransport>& the_transport() {
  static std::shared_ptr<MpiTransport> transport;
  return transport;
}

}  // namespace

bool mpi_built() { return true; }

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);  // may be called before MPI_Init
  return {text, static_cast<size_t>(length)};
}

std::shared_ptr<Transport> make_mpi_transport(const MpiOptions& options) {
  auto& transport = the_transport();
  if (!transport) transport = std::make_shared<MpiTransport>(options);
  return transport;
}

void finish_mpi() {
  if (the_transport()) the_transport()->finish();
}

}  // namespace weft
