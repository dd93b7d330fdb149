#include "parallel/transport/nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/check.h"
#include "kernels/cuda/queue.h"
#include "parallel/communicator.h"
#include "parallel/transport/matchmaker.h"
#include "parallel/transport/nccl_api.h"
#include "parallel/transport/staged_bytes.h"

namespace weft {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kIdleLook{50};  // the period of error checks while idle
constexpr double kCloseSeconds = 5;

class NcclTransport;

struct NcclTransfer final : Transfer {
  // kMoving: the rank's thread works on it, and its memory may be read or written.
  enum class State : uint8_t { kOffered, kMatched, kMoving, kDone };

  NcclTransfer(NcclTransport& owner, bool receives) : Transfer(receives), transport(owner) {}
  ~NcclTransfer() override;

  NcclTransport& transport;
  Offer offer;
  void* data = nullptr;  // a send only reads it
  bool on_host = true;
  cudaEvent_t posted = nullptr;  // device memory: passed when the stream's earlier work is done
  State state = State::kOffered;
  MessageHeader arrived;
};

// Thrown in the rank's thread where the job has ended for a reason that is known.
struct Ended {};

// The ranks of one NCCL communicator have this in common.
struct NcclJob {
  NcclJob(const NcclOptions& options, int ranks)
      : api(options.api ? *options.api : NcclApi{}),
        startup_seconds(options.startup_seconds),
        size(ranks) {}

  NcclApi api;
  double startup_seconds;
  int size;
  ncclUniqueId id{};
  std::shared_ptr<Matchmaker> matchmaker{};
};

class NcclTransport final : public Transport, private MatchReceiver {
 public:
  NcclTransport(const NcclJob& job, int rank, int device)
      : job_(job), rank_(rank), device_(device) {
    matchmaker_->join(rank_, *this);
    thread_ = std::thread([this] { work(); });
  }

  ~NcclTransport() override {
    set(leaving_);
    thread_.join();
    matchmaker_->leave(rank_);
  }

  void await_ready() {
    std::unique_lock guard(lock_);
    changed_.wait(guard, [&] { return ready_ || quiet_; });
    if (!why_.empty()) throw Error(ErrorKind::kComm, why_);
  }

  int rank() const override { return rank_; }
  int size() const override { return job_.size; }

  bool takes_device_memory() const override { return true; }

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    return post(stream, false, peer, header, view.data);
  }

  std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                    const TensorView& view) override {
    return post(stream, true, peer, expected, view.data);
  }

  MessageHeader wait(Transfer& under_way) override {
    auto& transfer = static_cast<NcclTransfer&>(under_way);
    std::unique_lock guard(lock_);
    const auto over = [&] { return !why_.empty() || transfer.state == NcclTransfer::State::kDone; };
    if (!over() && transfer.state == NcclTransfer::State::kOffered) {
      guard.unlock();
      matchmaker_->waiting(rank_, transfer.offer.number);
      guard.lock();
    }
    changed_.wait(guard, over);
    if (!why_.empty()) throw Error(ErrorKind::kComm, why_);
    return transfer.receive ? transfer.arrived : transfer.offer.header;
  }

  std::shared_ptr<Transport> beside() override {
    throw Error(ErrorKind::kUsage,
                "the ranks are joined by NCCL, whose matchmaker knows one thread of a rank, and a "
                "stream's first rank has two; legal: MPI, or ranks that are threads");
  }

  int job() const override { return job_number_; }
  int64_t strays() const override { return strays_; }
  int64_t held_bytes() const override { return staged_; }
  void end_job() noexcept override { set(job_ended_); }

  void begin_job() override {
    job_number_ = next_job(job_number_);
    matchmaker_->begin_job(rank_);
  }

  void abort(std::string_view why) noexcept override {
    const std::string_view text = why.empty() ? std::string_view("aborted") : why;
    without_throwing([&] {
      ended(std::string(text));  // also where the matchmaker's process does not answer
      matchmaker_->abort(std::string(text));
    });
  }

  // Withdraws a transfer that is destroyed before its wait, so that neither the matchmaker nor the
  // rank's thread uses it any more.
  void take_back(NcclTransfer& transfer) {
    std::unique_lock guard(lock_);
    if (transfer.state == NcclTransfer::State::kOffered && !quiet_) {
      guard.unlock();
      matchmaker_->withdraw(rank_, transfer.offer.number);
      guard.lock();
    }
    changed_.wait(guard, [&] { return quiet_ || transfer.state == NcclTransfer::State::kDone; });
    open_.erase(transfer.offer.number);
    if (transfer.posted) api_.event_destroy(transfer.posted);
  }

 private:
  std::unique_ptr<Transfer> post(const Stream& stream, bool receive, int peer,
                                 const MessageHeader& header, void* data) {
    auto transfer = std::make_unique<NcclTransfer>(*this, receive);
    transfer->data = data;
    // The memory decides and not the stream, so a host stream may send device memory.
    check(api_.set_device(device_), "cudaSetDevice");
    cudaPointerAttributes memory{};
    check(api_.pointer_get_attributes(&memory, data), "cudaPointerGetAttributes");
    transfer->on_host = memory.type != cudaMemoryTypeDevice && memory.type != cudaMemoryTypeManaged;
    if (!transfer->on_host) {
      check(api_.event_create(&transfer->posted, cudaEventDisableTiming), "cudaEventCreate");
      check(api_.event_record(transfer->posted,
                              stream.queue() ? cuda_queue(stream).stream() : nullptr),
            "cudaEventRecord");
    }
    {
      const std::lock_guard guard(lock_);
      transfer->offer = {next_++, receive, peer, header};
      open_.emplace(transfer->offer.number, transfer.get());
    }
    matchmaker_->offer(rank_, transfer->offer);
    return transfer;
  }

  // --- called by the matchmaker ---

  void matched(std::span<const Match> matches) override {
    {
      const std::lock_guard guard(lock_);
      for (const Match& match : matches) {
        const auto at = open_.find(match.number);
        if (at == open_.end()) continue;  // the job has ended
        at->second->arrived = match.header;
        at->second->state =
            match.moves ? NcclTransfer::State::kMatched : NcclTransfer::State::kDone;
        if (match.moves) queue_.push_back(at->second);
      }
    }
    changed_.notify_all();
  }

  void withdrawn(uint64_t number) override {
    {
      const std::lock_guard guard(lock_);
      const auto at = open_.find(number);
      if (at != open_.end()) at->second->state = NcclTransfer::State::kDone;
    }
    changed_.notify_all();
  }

  void strayed() override { ++strays_; }

  void ended(const std::string& why) override {
    {
      const std::lock_guard guard(lock_);
      if (why_.empty()) why_ = why;
    }
    changed_.notify_all();
  }

  // --- called by the rank's thread, the only one that calls NCCL ---

  void work() {
    try {
      open();
      matchmaker_->ready(rank_);
      set(ready_);
      while (turn()) {
      }
    } catch (const Ended&) {
    } catch (const std::exception& error) {
      const std::string why = "rank " + std::to_string(rank_) + ": " + error.what();
      ended(why);
      matchmaker_->abort(why);
    }
    close();
    set(quiet_);
  }

  void set(bool& flag) noexcept {
    {
      const std::lock_guard guard(lock_);
      flag = true;
    }
    changed_.notify_all();
  }

  bool over() {
    const std::lock_guard guard(lock_);
    return !why_.empty();
  }

  void check(cudaError_t status, const char* call) {
    if (status == cudaSuccess) return;
    throw Error(ErrorKind::kComm, std::string(call) + " on device " + std::to_string(device_) +
                                      ": " + api_.cuda_error_string(status));
  }

  void check(ncclResult_t result, const std::string& doing) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const char* last = api_.last_error(comm_);
    throw Error(ErrorKind::kComm, "NCCL, " + doing + ": " + api_.error_string(result) +
                                      (last && *last ? std::string(" (") + last + ")" : ""));
  }

  // Checks the communicator's own state; true where a call is still under way.
  bool look(const std::string& doing) {
    ncclResult_t state = ncclSuccess;
    check(api_.comm_get_async_error(comm_, &state), doing);
    check(state, doing);
    return state == ncclInProgress;
  }

  // Sleeps between looks until `done`; ends with the job.
  template <class Done>
  void sleep_until(Done&& done) {
    for (int naps = 0; !done(); ++naps) {
      if (over()) throw Ended();
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(5 << std::min(naps, 5), 100)));
    }
  }

  void open() {
    check(api_.set_device(device_), "cudaSetDevice");
    check(api_.stream_create(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(api_.event_create(&moved_, cudaEventDisableTiming), "cudaEventCreate");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const std::string doing = "starting";
    check(api_.comm_init_rank_config(&comm_, job_.size, job_.id, rank_, &config), doing);
    const auto limit = Clock::now() + std::chrono::duration<double>(job_.startup_seconds);
    sleep_until([&] {
      if (!look(doing)) return true;
      if (Clock::now() < limit) return false;
      matchmaker_->late(rank_, job_.startup_seconds);
      std::unique_lock guard(lock_);
      changed_.wait(guard, [&] { return !why_.empty(); });
      return false;
    });
  }

  // One group of messages, or one look where there are none. False once the rank leaves.
  bool turn() {
    std::vector<NcclTransfer*> batch;
    {
      std::unique_lock guard(lock_);
      changed_.wait_for(guard, kIdleLook,
                        [&] { return !queue_.empty() || leaving_ || job_ended_ || !why_.empty(); });
      if (!why_.empty()) throw Ended();
      if (leaving_) return false;
      batch.swap(queue_);
      for (NcclTransfer* transfer : batch) transfer->state = NcclTransfer::State::kMoving;
      if (std::exchange(job_ended_, false)) free_staging();
    }
    if (batch.empty()) {
      look("between messages");
      return true;
    }
    move(batch);
    {
      const std::lock_guard guard(lock_);
      for (NcclTransfer* transfer : batch) transfer->state = NcclTransfer::State::kDone;
    }
    changed_.notify_all();
    return true;
  }

  static std::string describe(const std::vector<NcclTransfer*>& batch) {
    const Offer& first = batch[0]->offer;
    std::string text = std::string(first.receive ? "receiving from rank " : "sending to rank ") +
                       std::to_string(first.peer) + " " + tag_text(first.header.tag);
    if (batch.size() > 1) text += " and " + std::to_string(batch.size() - 1) + " more";
    return text;
  }

  void move(const std::vector<NcclTransfer*>& batch) {
    const std::string doing = describe(batch);
    const auto padded_bytes = [](const NcclTransfer& transfer) {
      const int64_t bytes = transfer.offer.header.bytes;
      return transfer.on_host ? (bytes + kNcclStagedUnit - 1) / kNcclStagedUnit * kNcclStagedUnit
                              : 0;
    };
    int64_t total = 0;
    for (const NcclTransfer* transfer : batch) total += padded_bytes(*transfer);
    std::vector<char*> at;
    char* next = staging(total);
    for (NcclTransfer* transfer : batch) {
      at.push_back(transfer->on_host ? next : static_cast<char*>(transfer->data));
      next += padded_bytes(*transfer);
      if (!transfer->on_host)
        check(api_.stream_wait_event(stream_, transfer->posted, 0), "cudaStreamWaitEvent");
      else if (!transfer->receive)
        copy(at.back(), transfer->data, *transfer, cudaMemcpyHostToDevice);
    }
    issue(batch, at, doing);
    await_stream(doing);
    bool copied = false;
    for (size_t i = 0; i < batch.size(); ++i)
      if (batch[i]->on_host && batch[i]->receive) {
        copy(batch[i]->data, at[i], *batch[i], cudaMemcpyDeviceToHost);
        copied = true;
      }
    if (copied) await_stream(doing);
  }

  void issue(const std::vector<NcclTransfer*>& batch, const std::vector<char*>& at,
             const std::string& doing) {
    check(api_.group_start(), doing);
    ncclResult_t first = ncclSuccess;
    for (size_t i = 0; i < batch.size() && (first == ncclSuccess || first == ncclInProgress); ++i) {
      const Offer& offer = batch[i]->offer;
      const auto bytes = static_cast<size_t>(offer.header.bytes);
      first = offer.receive ? api_.recv(at[i], bytes, ncclInt8, offer.peer, comm_, stream_)
                            : api_.send(at[i], bytes, ncclInt8, offer.peer, comm_, stream_);
    }
    const ncclResult_t last = api_.group_end();
    check(first, doing);
    check(last, doing);
    sleep_until([&] { return !look(doing); });
  }

  void copy(void* to, const void* from, const NcclTransfer& transfer, cudaMemcpyKind kind) {
    const auto bytes = static_cast<size_t>(transfer.offer.header.bytes);
    check(api_.memcpy_async(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
  }

  void await_stream(const std::string& doing) {
    check(api_.event_record(moved_, stream_), "cudaEventRecord");
    sleep_until([&] {
      const cudaError_t status = api_.event_query(moved_);
      if (status != cudaErrorNotReady) check(status, doing.c_str());
      if (status == cudaSuccess) return true;
      look(doing);
      return false;
    });
  }

  // The memory is from cudaMalloc, because peers can reach it. A larger buffer is added instead of
  // replacing the old one, because cudaFree waits for the device. All are freed when the job ends.
  char* staging(int64_t bytes) {
    if (bytes > largest_) {
      void* made = nullptr;
      check(api_.device_malloc(&made, static_cast<size_t>(staged_bytes(bytes))), "cudaMalloc");
      staging_.push_back(made);
      largest_ = staged_bytes(bytes);
      staged_ += largest_;
    }
    return staging_.empty() ? nullptr : static_cast<char*>(staging_.back());
  }

  void free_staging() {
    for (void* one : staging_) api_.device_free(one);
    staging_.clear();
    staged_ = largest_ = 0;
  }

  void close() noexcept {
    if (comm_ && (over() || !finalized())) {
      api_.comm_abort(comm_);  // ends what is under way, soon
      if (moved_ && api_.event_record(moved_, stream_) == cudaSuccess)
        sleep_at_most([&] { return api_.event_query(moved_) != cudaErrorNotReady; });
    } else if (comm_) {
      api_.comm_destroy(comm_);
    }
    free_staging();
    if (moved_) api_.event_destroy(moved_);
    if (stream_) api_.stream_destroy(stream_);
  }

  template <class Done>
  static void sleep_at_most(Done&& done) {
    const auto limit = Clock::now() + std::chrono::duration<double>(kCloseSeconds);
    while (!done() && Clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  bool finalized() noexcept {
    ncclResult_t state = api_.comm_finalize(comm_);
    sleep_at_most([&] {
      return state != ncclInProgress || api_.comm_get_async_error(comm_, &state) != ncclSuccess;
    });
    return state == ncclSuccess;
  }

  const NcclJob job_;
  const NcclApi& api_ = job_.api;
  const std::shared_ptr<Matchmaker>& matchmaker_ = job_.matchmaker;
  const int rank_, device_;

  int job_number_ = 0;  // used by the rank's own calls alone
  std::atomic<int64_t> strays_ = 0;
  std::atomic<int64_t> staged_ = 0;  // bytes of all staging buffers

  std::mutex lock_;  // guards the members below; never held while the matchmaker is called
  std::condition_variable changed_;
  std::map<uint64_t, NcclTransfer*> open_;
  std::vector<NcclTransfer*> queue_;  // matched transfers in the job's order
  uint64_t next_ = 1;
  std::string why_;  // the reason of the job's end
  // ready_: the communicator can move messages. quiet_: the thread has ended, and nothing touches
  // the transfers' memory any more.
  bool ready_ = false, quiet_ = false, leaving_ = false, job_ended_ = false;

  // Used by the rank's thread alone.
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t moved_ = nullptr;
  std::vector<void*> staging_;  // on the device, for memory of the host; the last is in use
  int64_t largest_ = 0;         // bytes of the last one
  std::thread thread_;
};

NcclTransfer::~NcclTransfer() { transport.take_back(*this); }

ncclUniqueId new_id(const NcclApi& api) {
  ncclUniqueId id{};
  const ncclResult_t result = api.get_unique_id(&id);
  if (result != ncclSuccess)
    throw Error(ErrorKind::kComm, std::string("ncclGetUniqueId: ") + api.error_string(result));
  return id;
}

}  // namespace

std::vector<std::shared_ptr<Transport>> make_nccl_transports(std::span<const int> devices,
                                                             const NcclOptions& options) {
  const int size = static_cast<int>(devices.size());
  NcclJob job(options, size);
  job.id = new_id(job.api);
  job.matchmaker = make_matchmaker(size);
  std::vector<std::shared_ptr<NcclTransport>> made;
  for (int rank = 0; rank < size; ++rank)
    made.push_back(std::make_shared<NcclTransport>(job, rank, devices[rank]));
  for (const auto& transport : made) transport->await_ready();
  return {made.begin(), made.end()};
}

std::shared_ptr<Transport> make_nccl_transport(
    int rank, int size, int device, const std::function<std::string(const std::string&)>& share,
    const NcclOptions& options) {
  NcclJob job(options, size);
  if (rank == 0) job.id = new_id(job.api);
  std::string note(job.id.internal, sizeof job.id.internal);
  job.matchmaker =
      connect_matchmaker(rank, size, options.interfaces, options.startup_seconds, note, share);
  if (note.size() != sizeof job.id.internal)
    throw Error(ErrorKind::kComm, "the first rank's NCCL id has " + std::to_string(note.size()) +
                                      " bytes instead of " +
                                      std::to_string(sizeof job.id.internal));
  std::ranges::copy(note, job.id.internal);
  auto made = std::make_shared<NcclTransport>(job, rank, device);
  made->await_ready();
  return made;
}

}  // namespace weft
