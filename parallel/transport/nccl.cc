#include "parallel/transport/nccl.h"

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/check.h"
#include "kernels/cuda/message_queues.h"
#include "kernels/cuda/queue.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

constexpr std::chrono::milliseconds kLook{
    50};  // the period of looks for errors and for the job's end

// The tag of the messages that carry a communicator's id. Two ranks open those that both are in in
// one order.
const Tag kIdTag{.kind = Payload::kControl, .topic = Topic::kShare, .hop = 1};

// A communicator, and the stream on which all of its operations run.
struct DeviceLine {
  ncclComm_t comm = nullptr;
  std::vector<int> ranks;  // world ranks by rank of the communicator
  Stream stream;

  int index(int world_rank) const {
    const auto at = std::ranges::find(ranks, world_rank);
    CHECK(at != ranks.end(), "rank", world_rank, "is not of the communicator");
    return static_cast<int>(at - ranks.begin());
  }
};

// The messages of one post. The stream of its post takes them up at the first wait.
struct NcclTransfer final : Transfer {
  explicit NcclTransfer(const Stream& of) : Transfer(false), stream(of) {}
  Stream stream;
  DeviceEvent done;
  bool awaited = false;
};

class NcclTransport final : public TransportDecorator {
 public:
  NcclTransport(std::shared_ptr<Transport> inner, Device device, NcclSums sums)
      : TransportDecorator(std::move(inner)), device_(device), sums_(sums) {}

  ~NcclTransport() override {
    {
      const std::lock_guard guard(lock_);
      leaving_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    if (!inner_->failure().empty()) abort_all();
    for (const auto* lines : {&groups_, &pairs_})
      for (const auto& [key, line] : *lines) end(*line);
  }

  // A second thread's messages are few, and of the host.
  std::shared_ptr<Transport> beside() override { return inner_->beside(); }

  bool enqueues() const override { return true; }

  void open_group(int id, const std::vector<int>& ranks) override {
    const Key key = group_key(id, ranks);
    if (!groups_.contains(key)) open(groups_, key, ranks, kExchangeBlocks);
  }

  // Every rank opens its pairs by the ranks' numbers, so the ends of the first that is not open are
  // both there.
  void open_pairs(std::vector<int> to, std::vector<int> from) override {
    std::vector<std::vector<int>> pairs;
    for (const int peer : to) pairs.push_back({rank(), peer});
    for (const int peer : from) pairs.push_back({peer, rank()});
    std::ranges::sort(pairs);
    for (const std::vector<int>& pair : pairs)
      if (!pairs_.contains(pair)) open(pairs_, pair, pair, kMessageBlocks);
  }

  void close_pairs() override { close(pairs_); }
  void close_all() override {
    close(groups_);
    close(pairs_);
  }

  std::unique_ptr<Transfer> enqueue(Stream& stream, PostOrder order, int id,
                                    const std::vector<int>& ranks,
                                    std::span<const DeviceMessage> messages) override {
    const int peer = messages[0].peer;
    CHECK(order == PostOrder::kGroup || messages.size() == 1, messages.size(), "of a pair");
    return run_beside(stream, order == PostOrder::kGroup ? groups_ : pairs_,
                      order == PostOrder::kGroup ? group_key(id, ranks)
                      : messages[0].receive      ? Key{peer, rank()}
                                                 : Key{rank(), peer},
                      [&](const DeviceLine& line) { issue(line, messages); });
  }

  std::unique_ptr<Transfer> enqueue_sum(Stream& stream, int id, const std::vector<int>& ranks,
                                        const TensorView& x) override {
    if (sums_ == NcclSums::kOurs) return nullptr;
    return run_beside(stream, groups_, group_key(id, ranks), [&](const DeviceLine& line) {
      check(ncclAllReduce(x.data, x.data, static_cast<size_t>(x.count()), ncclFloat32, ncclSum,
                          line.comm, cuda_queue(line.stream).stream()),
            "adding " + std::to_string(x.count()) + " values", line.comm);
    });
  }

  MessageHeader wait(Transfer& under_way) override {
    auto* transfer = dynamic_cast<NcclTransfer*>(&under_way);
    if (!transfer) return inner_->wait(under_way);
    require_job();
    if (!std::exchange(transfer->awaited, true)) transfer->done.wait_on(transfer->stream);
    return {};
  }

 private:
  using Key = std::vector<int>;
  using Lines = std::map<Key, std::unique_ptr<DeviceLine>>;

  static Key group_key(int id, const std::vector<int>& ranks) {
    Key key{id};
    key.insert(key.end(), ranks.begin(), ranks.end());
    return key;
  }

  // Lets `operate` enqueue on the line's stream, between what `stream` was given before and what it
  // is given after the wait. Null where there is no such line.
  template <class Operate>
  std::unique_ptr<Transfer> run_beside(Stream& stream, const Lines& lines, const Key& key,
                                       Operate&& operate) {
    const std::lock_guard guard(lock_);
    const auto found = lines.find(key);
    if (found == lines.end()) return nullptr;
    require_job();
    const DeviceLine& line = *found->second;
    Stream side = line.stream;
    DeviceEvent posted;
    posted.record(stream);
    posted.wait_on(side);
    operate(line);
    auto transfer = std::make_unique<NcclTransfer>(stream);
    transfer->done.record(side);
    return transfer;
  }

  void require_job() const {
    const std::string why = inner_->failure();
    if (!why.empty()) throw Error(ErrorKind::kComm, why);
  }

  static void check(ncclResult_t result, const std::string& doing, ncclComm_t comm = nullptr) {
    if (result == ncclSuccess) return;
    const char* last = ncclGetLastError(comm);
    throw Error(ErrorKind::kComm, "NCCL, " + doing + ": " + ncclGetErrorString(result) +
                                      (last && *last ? std::string(" (") + last + ")" : ""));
  }

  void open(Lines& lines, const Key& key, const std::vector<int>& ranks, int blocks) {
    if (groups_.size() + pairs_.size() == kMostNcclStreams)
      throw Error(ErrorKind::kUsage,
                  "this layout needs more than " + std::to_string(kMostNcclStreams) +
                      " communicators of NCCL for rank " + std::to_string(rank()) +
                      "; legal: --transport mpi or ucx, or a layout of fewer axes");
    auto line = std::make_unique<DeviceLine>();
    line->ranks = ranks;
    line->stream = stream_on(device_, 1);
    carry_messages(cuda_queue(line->stream));
    const ncclUniqueId id = shared_id(*line);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.maxCTAs = blocks;
    (void)cuda_queue(line->stream);  // makes its device this thread's
    const std::string doing = "meeting " + std::to_string(ranks.size() - 1) + " ranks";
    check(ncclCommInitRankConfig(&line->comm, static_cast<int>(ranks.size()), id,
                                 line->index(rank()), &config),
          doing);
    DeviceLine& opened = *line;
    {
      const std::lock_guard guard(lock_);
      lines.emplace(key, std::move(line));
    }
    if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
    connect(opened);
  }

  // The first rank's new id.
  ncclUniqueId shared_id(const DeviceLine& line) {
    ncclUniqueId id{};
    const TensorView view(id.internal, DType::kU8, {sizeof id.internal});
    const MessageHeader header{.tag = kIdTag.bits(0), .bytes = sizeof id.internal};
    Stream host = Stream::cpu(1);
    if (line.index(rank()) > 0) {
      inner_->wait(*inner_->receive(host, line.ranks[0], header, view));
      return id;
    }
    check(ncclGetUniqueId(&id), "making an id");
    std::vector<std::unique_ptr<Transfer>> sends;
    for (size_t other = 1; other < line.ranks.size(); ++other)
      sends.push_back(inner_->send(host, line.ranks[other], header, view));
    for (const auto& send : sends) inner_->wait(*send);
    return id;
  }

  // NCCL connects two ranks at their first message, and allocates then; so that comes before the
  // job. Every rank sends a byte to every other one, or the first of a pair to the second.
  void connect(const DeviceLine& line) {
    const auto at = pairs_.find(line.ranks);
    const bool pair = at != pairs_.end() && at->second.get() == &line;
    const auto size = static_cast<int64_t>(line.ranks.size());
    const Tensor bytes(DType::kU8, {2 * size}, device_);
    std::vector<DeviceMessage> messages;
    for (int64_t other = 0; other < size; ++other) {
      const int peer = line.ranks[other];
      if (peer == rank()) continue;
      for (const bool receive : {true, false})
        if (!pair || receive == (peer == line.ranks[0]))
          messages.push_back({receive, peer, 1, bytes.as<uint8_t>() + other + receive * size});
    }
    if (messages.empty()) return;  // a group of this rank alone
    {
      const std::lock_guard guard(lock_);
      issue(line, messages);
    }
    line.stream.sync();
    require_job();
  }

  static void issue(const DeviceLine& line, std::span<const DeviceMessage> messages) {
    const cudaStream_t stream = cuda_queue(line.stream).stream();
    const std::string doing = (messages[0].receive ? "receiving from rank " : "sending to rank ") +
                              std::to_string(messages[0].peer) + " " + tag_text(messages[0].tag);
    check(ncclGroupStart(), doing, line.comm);
    ncclResult_t result = ncclSuccess;
    for (const DeviceMessage& one : messages) {
      if (result != ncclSuccess) break;
      const auto bytes = static_cast<size_t>(one.bytes);
      const int peer = line.index(one.peer);
      result = one.receive ? ncclRecv(one.data, bytes, ncclInt8, peer, line.comm, stream)
                           : ncclSend(one.data, bytes, ncclInt8, peer, line.comm, stream);
    }
    const ncclResult_t end = ncclGroupEnd();
    check(result, doing, line.comm);
    check(end, doing, line.comm);
  }

  // Ends the messages under way where the job has ended, and the job where NCCL has failed: a
  // device that waits for a dead rank would wait for ever.
  void watch() {
    std::unique_lock guard(lock_);
    while (!leaving_) {
      if (!inner_->failure().empty()) return abort_all();
      const std::string fault = found_fault();
      if (!fault.empty()) inner_->abort("rank " + std::to_string(rank()) + ": " + fault);
      changed_.wait_for(guard, fault.empty() ? kLook : std::chrono::milliseconds(0));
    }
  }

  std::string found_fault() const {
    for (const auto* lines : {&groups_, &pairs_})
      for (const auto& [key, line] : *lines) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(line->comm, &state);
        try {
          check(asked, "looking for errors", line->comm);
          check(state, "moving messages", line->comm);
        } catch (const Error& error) {
          return error.what();
        }
      }
    return {};
  }

  template <class Lines>
  void close(Lines& lines) {
    const std::lock_guard guard(lock_);
    for (const auto& [key, line] : lines) abort(*line);
    lines.clear();
  }
  static void abort(DeviceLine& line) {
    if (ncclComm_t comm = std::exchange(line.comm, nullptr)) ncclCommAbort(comm);
  }
  void abort_all() {
    for (const auto* lines : {&groups_, &pairs_})
      for (const auto& [key, line] : *lines) abort(*line);
  }
  static void end(DeviceLine& line) {
    ncclComm_t comm = std::exchange(line.comm, nullptr);
    if (!comm) return;
    ncclCommFinalize(comm);
    ncclCommDestroy(comm);
  }

  const Device device_;
  const NcclSums sums_;
  std::mutex lock_;  // guards the members below; no call under it waits for another rank
  std::condition_variable changed_;
  Lines groups_, pairs_;  // by id and ranks, and by sender and receiver
  bool leaving_ = false;
  std::thread watcher_;
};

}  // namespace

bool nccl_built() { return true; }

std::string nccl_library() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "NCCL";
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

void prepare_nccl_environment() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

std::shared_ptr<Transport> make_nccl(std::shared_ptr<Transport> inner, Device device,
                                     NcclSums sums) {
  return std::make_shared<NcclTransport>(std::move(inner), device, sums);
}

}  // namespace weft
