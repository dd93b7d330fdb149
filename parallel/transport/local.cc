#include "parallel/transport/local.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "kernels/cuda/device.h"
#include "kernels/transfer.h"
#include "parallel/bootstrap/clock_offset.h"
#include "parallel/transport/courier.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

bool on_host(Device device) { return device.kind == Device::Kind::kCpu; }
bool on_host(const TensorView& view) { return on_host(view.device); }

struct LocalTransfer;

// A message between its send and its delivery. The receiving rank's desk guards it.
struct Mail {
  MessageHeader header;
  int from = 0;
  const void* data = nullptr;  // the sender's, or `copy`'s
  Device device{};             // the data's device
  std::vector<char> copy;
  DeviceEvent made, read;  // device memory: written by the sender's stream, read by the receiver's
  bool over = false;       // written, taken back or discarded
  std::atomic<bool> gone{false};   // the sender's memory is free again
  LocalTransfer* taker = nullptr;  // the receive that has taken it and does not have its data yet
  std::atomic<bool> taken{false};  // it has, or had, a taker
};

struct World;
struct LocalTransfer final : Transfer {
  using Transfer::Transfer;
  ~LocalTransfer() override;
  std::shared_ptr<World> world;
  int rank = 0, peer = 0;
  MessageHeader header;          // a send's own, a receive's expected one, later the sender's
  std::optional<Stream> stream;  // the stream that writes or reads device memory
  TensorView view{};             // receive: the destination
  DeviceEvent free;              // receive: passed when the stream no longer uses the memory
  std::shared_ptr<Mail> mail;    // send: where the sender's memory may still be read;
                                 // receive: where it has taken a message that is not written yet
  std::shared_ptr<Mail> read;    // receive: the message whose event says that its data are there
  // A receive's progress, guarded by its rank's desk. kTaken: it is written by the rank that waits
  // first, this one or the sender.
  enum class State : uint8_t { kPosted, kTaken, kWriting, kDone } state = State::kPosted;
};

// A desk holds the receives that a rank has posted and the messages that have come for it.
struct Desk {
  enum class Stage : uint8_t { kMissing, kRunning, kEnded };
  std::mutex lock;
  std::condition_variable bell;               // rung for the waits of the rank's own threads alone
  std::deque<std::shared_ptr<Mail>> mails;    // not taken yet, oldest first
  std::list<LocalTransfer*> posted;           // receives without a message, oldest first
  size_t threads = 1;                         // of the rank (Transport::beside)
  std::vector<const LocalTransfer*> waiting;  // what they are blocked in
  Stage stage = Stage::kMissing;
  int job = 0;
  int64_t strays = 0;
};

// The desks of all ranks. A call holds the lock of one desk at a time; check_deadlock() holds all.
struct World {
  World(int ranks, const LocalOptions& given) : options(given), desks(ranks), threads(ranks) {
    if (given.delay_seed) courier = std::make_unique<Courier>(given.delay_seed, given.max_delay_us);
  }

  const LocalOptions options;
  std::vector<Desk> desks;  // by rank
  Clock::time_point started = Clock::now();
  std::atomic<int> threads;  // of all ranks
  std::atomic<int> idle{0};  // those that are blocked, or whose rank has ended
  std::mutex abort_lock;
  std::string why;  // read where `aborted` is set
  std::atomic<bool> aborted{false};
  std::mutex numbers_lock;
  std::map<int, int64_t> numbers;    // how many of a series have been taken
  std::atomic<int> under_way{0};     // what the courier carries
  std::unique_ptr<Courier> courier;  // declared last: its thread uses the members above

  // Lets the courier call meet() for a message or for a receive, after a delay of its own.
  void delay(int rank, int from, const TagBits& tag, std::shared_ptr<Mail> mail) {
    ++under_way;
    courier->add(mail ? from : ~from, rank, tag, [this, rank, from, tag, mail = std::move(mail)] {
      meet(rank, from, tag, mail);
      --under_way;
    });
  }

  void ring(int rank) {
    { const std::lock_guard guard(desks[rank].lock); }  // the rank sees the change or sleeps
    desks[rank].bell.notify_all();
  }

  void end_with(const std::string& text) {
    {
      const std::lock_guard guard(abort_lock);
      if (aborted) return;
      why = text.empty() ? "aborted" : text;
      aborted = true;
    }
    for (size_t rank = 0; rank < desks.size(); ++rank) ring(static_cast<int>(rank));
  }

  // --- with the receiving desk's lock held ---

  static LocalTransfer* take_posted(Desk& desk, int from, const TagBits& tag) {
    const auto at = std::ranges::find_if(desk.posted, [&](const LocalTransfer* one) {
      return one->peer == from && one->header.tag == tag;
    });
    if (at == desk.posted.end()) return nullptr;
    LocalTransfer* found = *at;
    desk.posted.erase(at);
    return found;
  }

  static auto find_mail(Desk& desk, int from, const TagBits& tag) {
    return std::ranges::find_if(desk.mails, [&](const auto& mail) {
      return mail->from == from && mail->header.tag == tag;
    });
  }

  // A message of an earlier job is discarded and counted.
  static bool discard(Desk& desk, Mail& mail) {
    if (!of_earlier_job(mail.header.tag, desk.job)) return false;
    ++desk.strays;
    end(mail);
    return true;
  }

  // The receive has this message. Messages of a device's memory are written when a rank waits for
  // them.
  static bool take(LocalTransfer& transfer, const std::shared_ptr<Mail>& mail) {
    transfer.mail = mail;
    transfer.state = LocalTransfer::State::kTaken;
    mail->taker = &transfer;
    mail->taken = true;
    return on_host(mail->device) && on_host(transfer.view);
  }

  // The expected size decides; the Communicator refuses another one. A view without data belongs to
  // a simulation that leaves the data out.
  static void write(const Mail& mail, const LocalTransfer& transfer) {
    if (mail.header.bytes == transfer.header.bytes && transfer.view.data)
      std::memcpy(transfer.view.data, mail.data, static_cast<size_t>(mail.header.bytes));
  }

  static void end(Mail& mail) {
    mail.taker = nullptr;
    mail.over = mail.gone = true;
  }

  static void finish(Mail& mail, LocalTransfer& transfer) {
    transfer.header = mail.header;
    transfer.state = LocalTransfer::State::kDone;
    end(mail);
    transfer.mail.reset();
  }

  // --- called by the courier ---

  // A message (`come`) or a receive has come: the oldest message is written into the oldest
  // receive. A message without a receive waits; without rendezvous it is copied, so that the sender
  // goes on.
  void meet(int rank, int from, const TagBits& tag, const std::shared_ptr<Mail>& come) {
    Desk& desk = desks[rank];
    {
      const std::lock_guard guard(desk.lock);
      if (come && !come->over && !discard(desk, *come)) desk.mails.push_back(come);
      const auto at = find_mail(desk, from, tag);
      LocalTransfer* to = at == desk.mails.end() ? nullptr : take_posted(desk, from, tag);
      if (to) {
        const std::shared_ptr<Mail> mail = *at;
        desk.mails.erase(at);
        if (take(*to, mail)) {
          write(*mail, *to);
          finish(*mail, *to);
        }
      } else if (come && !come->over && !options.rendezvous) {
        copy_payload(*come);
        come->gone = true;
      }
    }
    desk.bell.notify_all();
    ring(from);
  }

  static void copy_payload(Mail& mail) {
    const char* bytes = static_cast<const char*>(mail.data);
    mail.copy.assign(bytes, bytes + mail.header.bytes);
    mail.data = mail.copy.data();
  }

  // --- deadlocks and start-up ---

  // True where the transfer a rank waits for can end without another rank's action.
  static bool can_end(const LocalTransfer& transfer) {
    return transfer.receive ? transfer.state != LocalTransfer::State::kPosted
                            : transfer.mail->gone.load() || transfer.mail->taken.load();
  }

  // True where a thread of the rank works, or waits for what has come.
  static bool is_busy(const Desk& desk) {
    const size_t running = desk.threads - (desk.stage == Desk::Stage::kEnded);
    return desk.stage == Desk::Stage::kMissing || desk.waiting.size() < running ||
           std::ranges::any_of(desk.waiting, [](const auto* one) { return can_end(*one); });
  }

  // Ends the job where every rank is blocked or has ended and no message is on its way. No lock may
  // be held.
  void check_deadlock() {
    if (idle < threads) return;
    std::string text = "deadlock:";
    {
      std::vector<std::unique_lock<std::mutex>> guards;
      for (Desk& desk : desks) guards.emplace_back(desk.lock);
      // This is read under the locks: until then a rank may wake, send and block again.
      if (under_way > 0 || std::ranges::any_of(desks, is_busy)) return;
      for (size_t r = 0; r < desks.size(); ++r) {
        text += (r ? "; rank " : " rank ") + std::to_string(r);
        if (desks[r].waiting.empty()) text += " has ended";
        for (const LocalTransfer* one : desks[r].waiting)
          text += std::string(one == desks[r].waiting.front() ? "" : " and") +
                  (one->receive ? " receives from rank " : " sends to rank ") +
                  std::to_string(one->peer) + " " + tag_text(one->header.tag);
      }
    }
    end_with(text);
  }

  void check_startup() {
    if (Clock::now() - started < std::chrono::duration<double>(options.startup_seconds)) return;
    std::string missing;
    for (size_t r = 0; r < desks.size(); ++r) {
      const std::lock_guard guard(desks[r].lock);
      if (desks[r].stage == Desk::Stage::kMissing)
        missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
    if (!missing.empty())
      end_with("start-up: rank " + missing + " has not begun within " +
               std::to_string(static_cast<int>(options.startup_seconds)) + " s");
  }
};

LocalTransfer::~LocalTransfer() {
  if (receive) {
    Desk& desk = world->desks[rank];
    std::unique_lock guard(desk.lock);
    desk.bell.wait(guard, [&] { return state != State::kWriting; });  // a sender's memcpy
    desk.posted.remove(this);
    // A copy that the sender has begun may be under way.
    if (read && stream) without_throwing([&] { read->read.wait_on(*stream); });
    if (!mail) return;
    World::end(*mail);
    guard.unlock();
    world->ring(mail->from);
    return;
  }
  if (!mail || mail->gone) return;
  Desk& desk = world->desks[peer];
  const std::lock_guard guard(desk.lock);
  if (mail->gone) return;
  std::erase(desk.mails, mail);
  World::end(*mail);
}

class LocalTransport final : public Transport {
 public:
  enum class Thread : uint8_t { kFirst, kBeside };
  LocalTransport(std::shared_ptr<World> world, int rank, Thread thread = Thread::kFirst)
      : world_(std::move(world)), desk_(world_->desks[rank]), rank_(rank), thread_(thread) {
    if (thread == Thread::kBeside) count_thread(1);
  }
  ~LocalTransport() override {
    if (thread_ == Thread::kBeside) count_thread(-1);
  }

  std::shared_ptr<Transport> beside() override {
    return std::make_shared<LocalTransport>(world_, rank_, Thread::kBeside);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_->desks.size()); }

  bool takes_device_memory() const override { return true; }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    auto transfer = new_transfer(stream, false, peer, header, view);
    auto mail = std::make_shared<Mail>();
    mail->header = header;
    mail->from = rank_;
    mail->data = view.data;
    mail->device = view.device;
    if (!on_host(view)) mail->made.record(stream);
    const bool delayed = world_->courier && on_host(view);
    if (delayed || world_->options.rendezvous || !on_host(view)) transfer->mail = mail;
    if (delayed) {
      world_->delay(peer, rank_, header.tag, std::move(mail));
    } else if (!place(peer, mail, transfer->mail != nullptr)) {
      World::copy_payload(*mail);
      place(peer, mail, true);
    }
    return transfer;
  }

  std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                    const TensorView& view) override {
    auto transfer = new_transfer(stream, true, peer, expected, view);
    if (!on_host(view)) transfer->free.record(stream);
    const bool delayed = world_->courier && on_host(view);
    // Nothing may be read before the wait, so nothing useful is there.
    if (delayed && view.data) std::memset(view.data, 0xff, static_cast<size_t>(expected.bytes));
    std::unique_lock guard(desk_.lock);
    const auto at = World::find_mail(desk_, peer, expected.tag);
    if (delayed || at == desk_.mails.end()) {
      desk_.posted.push_back(transfer.get());
      guard.unlock();
      if (delayed) world_->delay(rank_, peer, expected.tag, nullptr);
      return transfer;
    }
    const bool host = World::take(*transfer, *at);
    desk_.mails.erase(at);
    if (host) {
      write(guard, *transfer);
    } else {
      guard.unlock();
      world_->ring(peer);  // the sender may wait for this
    }
    return transfer;
  }

  MessageHeader wait(Transfer& under_way) override {
    auto& transfer = static_cast<LocalTransfer&>(under_way);
    std::unique_lock guard(desk_.lock);
    if (!transfer.receive) {
      if (!transfer.mail) return transfer.header;
      block(guard, transfer, [&] { return World::can_end(transfer); });
      guard.unlock();
      if (!transfer.mail->gone) write_taken(transfer.peer, *transfer.mail);
      guard.lock();
      block(guard, transfer, [&] { return transfer.mail->gone.load(); });
      if (transfer.stream) transfer.mail->read.wait_on(*transfer.stream);
      return transfer.header;
    }
    using State = LocalTransfer::State;
    block(guard, transfer,
          [&] { return transfer.state == State::kDone || transfer.state == State::kTaken; });
    if (transfer.state == State::kTaken) write(guard, transfer);
    if (transfer.read) transfer.read->read.wait_on(*transfer.stream);
    return transfer.header;
  }

  std::string failure() const override {
    if (!world_->aborted) return {};
    const std::lock_guard guard(world_->abort_lock);
    return world_->why;
  }

  int job() const override { return desk_.job; }
  int64_t strays() const override {
    const std::lock_guard guard(desk_.lock);
    return desk_.strays;
  }
  int64_t held_bytes() const override {
    const std::lock_guard guard(desk_.lock);
    int64_t bytes = 0;
    for (const auto& mail : desk_.mails) bytes += static_cast<int64_t>(mail->copy.size());
    return bytes;
  }

  void begin_job() override {
    std::vector<int> senders;  // of the messages that are discarded
    {
      const std::lock_guard guard(desk_.lock);
      desk_.job = next_job(desk_.job);
      std::erase_if(desk_.mails, [&](const auto& mail) {
        if (!World::discard(desk_, *mail)) return false;
        senders.push_back(mail->from);
        return true;
      });
    }
    for (const int rank : senders) world_->ring(rank);
  }

  std::optional<int64_t> job_clock_ns() const override { return steady_clock_ns(); }

  std::optional<int64_t> take_number(int series) override {
    const std::lock_guard guard(world_->numbers_lock);
    return world_->numbers[series]++;
  }

  void abort(std::string_view why) noexcept override {
    without_throwing([&] { world_->end_with(std::string(why)); });
  }

  void set_stage(Desk::Stage stage) {
    {
      const std::lock_guard guard(desk_.lock);
      desk_.stage = stage;
    }
    if (stage != Desk::Stage::kEnded) return;
    ++world_->idle;
    world_->check_deadlock();
  }

 private:
  void count_thread(int by) {
    const std::lock_guard guard(desk_.lock);
    desk_.threads += by;
    world_->threads += by;
  }
  std::unique_ptr<LocalTransfer> new_transfer(const Stream& stream, bool receive, int peer,
                                              const MessageHeader& header, const TensorView& view) {
    auto transfer = std::make_unique<LocalTransfer>(receive);
    transfer->world = world_;
    transfer->rank = rank_;
    transfer->peer = peer;
    transfer->header = header;
    if (receive) transfer->view = view;
    if (!on_host(view)) transfer->stream = stream;
    return transfer;
  }

  // Brings a message to its receiver: it is written where its receive is posted and both ends lie
  // in the host's memory; else it waits there. False where it would wait with the sender's memory,
  // and that may not be kept.
  bool place(int peer, const std::shared_ptr<Mail>& mail, bool keep) {
    Desk& desk = world_->desks[peer];
    std::unique_lock guard(desk.lock);
    if (World::discard(desk, *mail)) return true;
    LocalTransfer* to = World::take_posted(desk, rank_, mail->header.tag);
    if (!to && !keep) return false;
    if (!to) {
      desk.mails.push_back(mail);
    } else if (on_host(mail->device) && on_host(to->view)) {
      to->state = LocalTransfer::State::kWriting;
      guard.unlock();
      World::write(*mail, *to);
      guard.lock();
      World::finish(*mail, *to);
    } else {
      if (!keep) World::copy_payload(*mail);
      World::take(*to, mail);
    }
    desk.bell.notify_all();
    return true;
  }

  // Writes the message that a receive of this rank has taken.
  void write(std::unique_lock<std::mutex>& guard, LocalTransfer& transfer) {
    const std::shared_ptr<Mail> mail = transfer.mail;
    if (mail->over) throw Error(ErrorKind::kComm, "the sender has taken its message back");
    // The sender's memory may be read only under the lock; copies need none.
    deliver_taken(guard, desk_, transfer, mail->copy.empty() ? Held::kLocked : Held::kOpen);
    guard.unlock();
    world_->ring(mail->from);
  }

  // Writes this rank's message into the receive that has taken it, unless its rank does.
  void write_taken(int peer, const Mail& sent) {
    Desk& desk = world_->desks[peer];
    std::unique_lock guard(desk.lock);
    LocalTransfer* const to = sent.taker;
    if (to && to->state == LocalTransfer::State::kTaken)
      deliver_taken(guard, desk, *to, Held::kOpen);
    desk.bell.notify_all();
  }

  // The caller holds the lock of the receive's desk, and holds it again in the end.
  enum class Held : uint8_t { kLocked, kOpen };
  void deliver_taken(std::unique_lock<std::mutex>& guard, Desk& desk, LocalTransfer& to,
                     Held during) {
    const std::shared_ptr<Mail> mail = to.mail;
    to.state = LocalTransfer::State::kWriting;
    if (during == Held::kOpen) guard.unlock();
    try {
      deliver(*mail, to);
    } catch (...) {
      if (!guard.owns_lock()) guard.lock();
      to.state = LocalTransfer::State::kTaken;
      desk.bell.notify_all();
      throw;
    }
    if (!guard.owns_lock()) guard.lock();
    finish_delivered(mail, to);
  }

  static void finish_delivered(const std::shared_ptr<Mail>& mail, LocalTransfer& transfer) {
    if (!on_host(transfer.view) && !on_host(mail->device)) transfer.read = mail;
    World::finish(*mail, transfer);
  }

  // Copies the payload. Where either end lies on a device, a stream beside the one that computes
  // does it, and the host waits only for memory that it reads itself.
  void deliver(Mail& mail, LocalTransfer& transfer) {
    if (mail.header.bytes != transfer.header.bytes || !transfer.view.data) return;
    if (on_host(mail.device) && on_host(transfer.view)) return World::write(mail, transfer);
    Stream& side = side_stream(on_host(transfer.view) ? mail.device : transfer.view.device);
    mail.made.wait_on(side);
    transfer.free.wait_on(side);
    cuda_copy_bytes(side, mail.data, transfer.view.data, static_cast<size_t>(mail.header.bytes));
    mail.read.record(side);
    if (on_host(mail.device) || on_host(transfer.view)) side.sync();
  }

  Stream& side_stream(Device device) {
    const auto found = sides_.find(device.index);
    return found != sides_.end() ? found->second
                                 : sides_.emplace(device.index, stream_on(device, 1)).first->second;
  }

  template <class Done>
  void block(std::unique_lock<std::mutex>& guard, const LocalTransfer& transfer, Done&& done) {
    if (desk_.stage == Desk::Stage::kMissing) desk_.stage = Desk::Stage::kRunning;
    if (!done() && !world_->aborted) {
      desk_.waiting.push_back(&transfer);
      ++world_->idle;
      while (!done() && !world_->aborted) {
        guard.unlock();
        world_->check_deadlock();
        world_->check_startup();
        guard.lock();
        // The waits are short because nothing signals the start-up limit.
        if (!done() && !world_->aborted) desk_.bell.wait_for(guard, std::chrono::milliseconds(20));
      }
      --world_->idle;
      std::erase(desk_.waiting, &transfer);
    }
    if (!world_->aborted) return;
    guard.unlock();
    const std::lock_guard why(world_->abort_lock);
    throw Error(ErrorKind::kComm, world_->why);
  }

  std::shared_ptr<World> world_;
  Desk& desk_;
  int rank_;
  const Thread thread_;
  std::map<int, Stream> sides_;  // by device: copies to it
};

}  // namespace

std::vector<std::shared_ptr<Transport>> make_local_transports(int ranks,
                                                              const LocalOptions& options) {
  CHECK(ranks > 0, "ranks", ranks);
  auto world = std::make_shared<World>(ranks, options);
  std::vector<std::shared_ptr<Transport>> transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(std::make_shared<LocalTransport>(world, rank));
  return transports;
}

void run_ranks(int ranks, const std::function<void(Communicator&)>& work,
               const LocalOptions& options) {
  const auto transports = make_local_transports(ranks, options);
  run_ranks(transports, work, [&](int rank, bool ended) {
    static_cast<LocalTransport&>(*transports[rank])
        .set_stage(ended ? Desk::Stage::kEnded : Desk::Stage::kRunning);
  });
}

}  // namespace weft
