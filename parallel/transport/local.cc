#include "parallel/transport/local.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "kernels/cuda/device.h"
#include "kernels/transfer.h"
#include "parallel/bootstrap/clock_offset.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

bool on_host(Device device) { return device.kind == Device::Kind::kCpu; }

// A message between its send and its receive. Device memory is copied by the receiver's stream
// after `made`; `read` is passed when the copy is done.
struct Mail {
  MessageHeader header;
  const void* data = nullptr;  // the sender's, or `copy`'s
  Device device{};             // the data's device
  std::vector<char> copy;
  DeviceEvent made, read;
  Clock::time_point visible;
  bool taken = false;
};

struct World;
struct LocalTransfer final : Transfer {
  using Transfer::Transfer;
  ~LocalTransfer() override;
  int rank = 0, peer = 0;
  MessageHeader header;
  std::optional<Stream> stream;  // the stream that writes or reads device memory
  TensorView view{};             // receive: the destination
  DeviceEvent free;              // receive: passed when the stream no longer uses the memory
  std::shared_ptr<Mail> mail;    // send: the message
  World* world = nullptr;        // send: set where the message refers to the sender's memory
};

// The state that the ranks share. One lock guards it; only payloads are copied outside of it.
struct World {
  World(int ranks, const LocalOptions& given)
      : options(given), random(given.delay_seed), waiting(ranks), state(ranks, State::kMissing) {}

  enum class State : uint8_t { kMissing, kRunning, kEnded };
  const LocalOptions options;
  std::mutex lock;
  std::condition_variable changed;
  std::mt19937_64 random;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Mail>>> mails;  // (from, to)
  std::vector<const LocalTransfer*> waiting;  // per rank: what it is blocked in, or null
  std::vector<State> state;
  Clock::time_point started = Clock::now();
  std::string aborted;

  std::shared_ptr<Mail> find(int rank, const LocalTransfer& transfer, bool visible_only) {
    for (const auto& mail : mails[{transfer.peer, rank}])
      if (mail->header.tag == transfer.header.tag)
        return !visible_only || mail->visible <= Clock::now() ? mail : nullptr;
    return nullptr;
  }
  // True where the transfer a rank waits for can end without another rank's action.
  bool can_end(int rank, const LocalTransfer& transfer) {
    return transfer.receive ? find(rank, transfer, false) != nullptr : transfer.mail->taken;
  }

  void end_with(const std::string& why) {
    if (aborted.empty()) aborted = why.empty() ? "aborted" : why;
    changed.notify_all();
  }

  // Ends the job where every rank is blocked or has ended and no message is on its way.
  void check_deadlock() {
    std::string text = "deadlock:";
    for (size_t r = 0; r < state.size(); ++r) {
      const int rank = static_cast<int>(r);
      const LocalTransfer* transfer = waiting[r];
      if (state[r] == State::kMissing) return;
      if (state[r] == State::kRunning && (!transfer || can_end(rank, *transfer))) return;
      text += (r ? "; rank " : " rank ") + std::to_string(rank);
      if (!transfer)
        text += " has ended";
      else
        text += std::string(transfer->receive ? " receives from rank " : " sends to rank ") +
                std::to_string(transfer->peer) + " " + tag_text(transfer->header.tag);
    }
    end_with(text);
  }

  void check_startup() {
    if (Clock::now() - started < std::chrono::duration<double>(options.startup_seconds)) return;
    std::string missing;
    for (size_t r = 0; r < state.size(); ++r)
      if (state[r] == State::kMissing) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    if (!missing.empty())
      end_with("start-up: rank " + missing + " has not begun within " +
               std::to_string(static_cast<int>(options.startup_seconds)) + " s");
  }
};

LocalTransfer::~LocalTransfer() {
  if (!world) return;
  const std::lock_guard guard(world->lock);
  std::erase(world->mails[{rank, peer}], mail);
}

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(world_->state.size()); }

  bool takes_device_memory() const override { return true; }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    auto mail = std::make_shared<Mail>();
    mail->header = header;
    mail->data = view.data;
    mail->device = view.device;
    auto transfer = std::make_unique<LocalTransfer>(false);
    const bool stays = world_->options.rendezvous || !on_host(view.device);
    if (!stays) {
      const char* bytes = static_cast<const char*>(view.data);
      mail->copy.assign(bytes, bytes + header.bytes);
      mail->data = mail->copy.data();
    }
    if (!on_host(view.device)) {
      mail->made.record(stream);
      transfer->stream = stream;
    }
    transfer->rank = rank_;
    transfer->peer = peer;
    transfer->header = header;
    transfer->mail = mail;
    if (stays) transfer->world = world_.get();
    {
      const std::lock_guard guard(world_->lock);
      mail->visible = Clock::now();
      if (world_->options.delay_seed)
        mail->visible +=
            std::chrono::microseconds(world_->random() % (world_->options.max_delay_us + 1));
      world_->mails[{rank_, peer}].push_back(std::move(mail));
    }
    world_->changed.notify_all();
    return transfer;
  }

  std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                    const TensorView& view) override {
    auto transfer = std::make_unique<LocalTransfer>(true);
    transfer->peer = peer;
    transfer->header = expected;
    transfer->view = view;
    if (!on_host(view.device)) {
      transfer->stream = stream;
      transfer->free.record(stream);
    }
    return transfer;
  }

  MessageHeader wait(Transfer& under_way) override {
    auto& transfer = static_cast<LocalTransfer&>(under_way);
    std::unique_lock guard(world_->lock);
    if (!transfer.receive) {
      if (transfer.world) block(guard, transfer, [&] { return transfer.mail->taken; });
      if (transfer.stream) transfer.mail->read.wait_on(*transfer.stream);
      return transfer.header;
    }
    std::shared_ptr<Mail> mail;
    block(guard, transfer, [&] {
      mail = world_->find(rank_, transfer, true);
      return mail != nullptr;
    });
    std::erase(world_->mails[{transfer.peer, rank_}], mail);
    // The sender's memory may be read only under the lock; copies need none.
    if (!mail->copy.empty()) guard.unlock();
    if (mail->header.bytes == transfer.header.bytes &&  // else the Communicator refuses it
        transfer.view.data)  // null: a simulation that leaves the data out
      deliver(*mail, transfer);
    if (!guard.owns_lock()) guard.lock();
    mail->taken = true;
    guard.unlock();
    world_->changed.notify_all();
    return mail->header;
  }

  std::optional<int64_t> job_clock_ns() const override { return steady_clock_ns(); }

  void abort(std::string_view why) noexcept override {
    without_throwing([&] {
      const std::lock_guard guard(world_->lock);
      world_->end_with(std::string(why));
    });
  }

  void set_state(World::State state) {
    const std::lock_guard guard(world_->lock);
    world_->state[rank_] = state;
    if (state == World::State::kEnded) world_->check_deadlock();
    world_->changed.notify_all();
  }

 private:
  // Copies the payload. Where either end lies on a device, a stream beside the one that computes
  // does it, and the host waits only for memory that it reads itself.
  void deliver(Mail& mail, LocalTransfer& transfer) {
    const auto bytes = static_cast<size_t>(mail.header.bytes);
    if (on_host(mail.device) && on_host(transfer.view.device)) {
      std::memcpy(transfer.view.data, mail.data, bytes);
      return;
    }
    Stream& side = side_stream(on_host(transfer.view.device) ? mail.device : transfer.view.device);
    mail.made.wait_on(side);
    transfer.free.wait_on(side);
    cuda_copy_bytes(side, mail.data, transfer.view.data, bytes);
    mail.read.record(side);
    if (on_host(mail.device) || on_host(transfer.view.device))
      side.sync();
    else
      mail.read.wait_on(*transfer.stream);
  }

  Stream& side_stream(Device device) {
    if (!side_ || side_->device() != device) side_ = stream_on(device, 1);
    return *side_;
  }

  template <class Done>
  void block(std::unique_lock<std::mutex>& guard, const LocalTransfer& transfer, Done&& done) {
    if (world_->state[rank_] == World::State::kMissing)
      world_->state[rank_] = World::State::kRunning;
    while (world_->aborted.empty() && !done()) {
      world_->waiting[rank_] = &transfer;
      world_->check_deadlock();
      world_->check_startup();
      // The waits are short because nothing signals delayed mail and the start-up limit.
      if (world_->aborted.empty())
        world_->changed.wait_for(
            guard, std::chrono::microseconds(world_->options.delay_seed ? 50 : 20000));
      world_->waiting[rank_] = nullptr;
    }
    if (!world_->aborted.empty()) throw Error(ErrorKind::kComm, world_->aborted);
  }

  std::shared_ptr<World> world_;
  int rank_;
  std::optional<Stream> side_;  // copies to this rank's device
};

// The first failure of a job and the rank it happened on.
class FirstError {
 public:
  void set(int rank, std::exception_ptr error) {
    const std::lock_guard guard(lock_);
    if (error_) return;
    error_ = std::move(error);
    rank_ = rank;
  }
  void rethrow() const {
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      // A usage error or a stop is not the fault of one rank.
      const bool named = error.kind() != ErrorKind::kComm && error.kind() != ErrorKind::kUsage &&
                         error.kind() != ErrorKind::kStopped;
      throw Error(error.kind(),
                  (named ? "rank " + std::to_string(rank_) + ": " : "") + error.what());
    }
  }

 private:
  std::mutex lock_;
  std::exception_ptr error_;
  int rank_ = 0;
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

namespace {

void run(std::span<const std::shared_ptr<Transport>> transports,
         const std::function<void(Communicator&)>& work,
         const std::function<void(int rank, bool ended)>& note) {
  FirstError first;
  const auto rank_main = [&](int rank) {
    if (note) note(rank, false);
    try {
      Communicator communicator(transports[rank]);
      work(communicator);
    } catch (const std::exception& error) {
      first.set(rank, std::current_exception());
      const auto* known = dynamic_cast<const Error*>(&error);
      // Ranks stop by agreement, and others may still need this rank's last messages.
      if (!known || known->kind() != ErrorKind::kStopped)
        transports[rank]->abort("rank " + std::to_string(rank) + " failed: " + error.what());
    } catch (...) {
      first.set(rank, std::current_exception());
      transports[rank]->abort("rank " + std::to_string(rank) + " failed");
    }
    if (note) note(rank, true);
  };
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < transports.size(); ++rank)
    threads.emplace_back(rank_main, static_cast<int>(rank));
  rank_main(0);
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

}  // namespace

void run_ranks(std::span<const std::shared_ptr<Transport>> transports,
               const std::function<void(Communicator&)>& work) {
  run(transports, work, {});
}

void run_ranks(int ranks, const std::function<void(Communicator&)>& work,
               const LocalOptions& options) {
  const auto transports = make_local_transports(ranks, options);
  run(transports, work, [&](int rank, bool ended) {
    static_cast<LocalTransport&>(*transports[rank])
        .set_state(ended ? World::State::kEnded : World::State::kRunning);
  });
}

}  // namespace weft
