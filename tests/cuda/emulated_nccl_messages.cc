// The messages of the emulated NCCL. The ranks of a communicator share a folder. A message is a
// file there: the sender writes it, the receiver removes it, and then both ends are done.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/cuda/emulated_nccl.h"

namespace weft::emulated {
namespace {

namespace fs = std::filesystem;

fs::path file_of(const ncclComm& comm, const Message& message) {
  const int from = message.receives ? message.peer : comm.rank;
  const int to = message.receives ? comm.rank : message.peer;
  return fs::path(comm.folder) /
         (std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(message.number));
}

std::string described(const ncclComm& comm, const Message& message) {
  return "communicator of " + std::to_string(comm.ranks) + ", rank " + std::to_string(comm.rank) +
         (message.receives ? " receives " : " sends ") + std::to_string(message.bytes) + " bytes " +
         (message.receives ? "from" : "to") + " rank " + std::to_string(message.peer) +
         ", message " + std::to_string(message.number);
}

void send(const ncclComm& comm, const Message& message) {
  // The system would refuse device memory, whose pages open at a touch.
  const std::vector<char> bytes(message.data, message.data + message.bytes);
  const fs::path path = file_of(comm, message), part = path.string() + ".part";
  std::ofstream out(part, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  std::error_code failed;
  if (out) fs::rename(part, path, failed);
  if (!out || failed)
    fault(cudaErrorLaunchFailure, described(comm, message) + ": cannot write " + path.string());
}

// Returns true once the message has arrived.
bool receive(const ncclComm& comm, Message& message) {
  const fs::path path = file_of(comm, message);
  std::ifstream in(path, std::ios::binary);
  if (!in) return false;
  const size_t sent = fs::file_size(path);
  if (sent != message.bytes) {
    fault(cudaErrorLaunchFailure,
          described(comm, message) + ", which has " + std::to_string(sent) + " bytes");
    return true;
  }
  std::vector<char> bytes(sent);
  in.read(bytes.data(), static_cast<std::streamsize>(sent));
  if (!message.data)
    message.kept = std::move(bytes);
  else if (sent > 0)
    std::memcpy(message.data, bytes.data(), sent);
  fs::remove(path);
  return true;
}

// All ranks add in the same order and get the same bits.
void add_up(const ncclComm& comm, const Exchange& exchange, const Sum& sum) {
  std::vector<float> total(sum.count), mine(sum.from, sum.from + sum.count);
  size_t next = 0;
  for (int rank = 0; rank < comm.ranks; ++rank) {
    const char* part = rank == comm.rank ? reinterpret_cast<const char*>(mine.data())
                                         : exchange.messages[sum.received[next++]].kept.data();
    for (size_t i = 0; i < sum.count; ++i) {
      float value = 0;
      std::memcpy(&value, part + i * sizeof value, sizeof value);
      total[i] = rank == 0 ? value : total[i] + value;
    }
  }
  std::copy(total.begin(), total.end(), sum.to);
}

void fail_device(int device, ncclResult_t result) {
  for (const auto& [handle, comm] : nccl().live)
    if (comm->device == device && comm->error == ncclSuccess) comm->error = result;
  ++machine().changes;
}

// Counts the messages of a device, whose communicators may be planned to fail after so many.
void count_begun(int device, size_t messages) {
  static const auto planned = [] {
    int of = -1;
    unsigned long after = 0;
    if (const char* text = std::getenv("WEFT_EMULATED_NCCL_FAIL"))
      std::sscanf(text, "%d:%lu", &of, &after);
    return std::pair<int, uint64_t>(of, after);
  }();
  nccl().begun[device] += messages;
  if (device == planned.first && nccl().begun[device] > planned.second)
    fail_device(device, ncclRemoteError);
}

// A copy of a kernel that has not begun is a kernel of its own: each launch of a graph makes one.
class NcclKernel {
 public:
  NcclKernel(Comm comm, Exchange exchange, uint64_t turn)
      : comm_(std::move(comm)),
        planned_(std::make_shared<const Exchange>(std::move(exchange))),
        turn_(turn) {}

  bool operator()() {
    if (comm_->state == ncclComm::State::kAborted) return true;
    if (!exchange_ && comm_->error == ncclSuccess) begin();
    if (machine().status != cudaSuccess) return true;
    if (comm_->error != ncclSuccess) return false;  // until the communicator is aborted
    bool all = true;
    for (Message& message : exchange_->messages) {
      if (message.done) continue;
      message.done =
          message.receives ? receive(*comm_, message) : !fs::exists(file_of(*comm_, message));
      if (machine().status != cudaSuccess) return true;
      machine().changes += message.done;
      all = all && message.done;
    }
    if (!all) return false;
    for (const Sum& sum : exchange_->sums) add_up(*comm_, *exchange_, sum);
    comm_->active.reset();
    return true;
  }

 private:
  void begin() {
    if (comm_->state == ncclComm::State::kDestroyed)
      return fault(cudaErrorLaunchFailure, "a graph uses a communicator that is destroyed");
    if (comm_->active || (turn_ > 0 && turn_ != comm_->begun + 1))
      return fault(cudaErrorLaunchFailure,
                   "a communicator is used on two streams of which neither waits for the other");
    if (turn_ > 0) comm_->begun = turn_;
    exchange_ = comm_->active = std::make_shared<Exchange>(*planned_);
    ++nccl().groups;
    ++machine().changes;
    count_begun(comm_->device, exchange_->messages.size());
    if (comm_->error != ncclSuccess) return;
    for (Message& message : exchange_->messages) {
      message.number = comm_->numbers[{message.receives, message.peer}]++;
      if (message.receives) {
        // Nothing may read this memory before the message is there.
        if (message.data) std::memset(message.data, 0xff, message.bytes);
        continue;
      }
      send(*comm_, message);
      if (!message.counts) continue;
      ++nccl().messages;
      nccl().bytes += message.bytes;
    }
  }

  Comm comm_;
  std::shared_ptr<const Exchange> planned_;
  uint64_t turn_;
  std::shared_ptr<Exchange> exchange_;  // once it has begun
};

}  // namespace

NcclState& nccl() {
  static auto* made = new NcclState;
  return *made;
}

Work nccl_kernel(Comm comm, Exchange exchange, uint64_t turn) {
  return {NcclKernel(std::move(comm), std::move(exchange), turn), true};
}

double most_seconds() {
  const char* text = std::getenv("WEFT_EMULATED_NCCL_SECONDS");
  return text ? std::atof(text) : 60;
}

std::string waiting_messages() {
  std::string text;
  for (const auto& [handle, comm] : nccl().live) {
    if (!comm->active) continue;
    for (const Message& message : comm->active->messages)
      if (!message.done) text += (text.empty() ? "" : "; ") + described(*comm, message);
  }
  return text;
}

void fail_nccl(int device, ncclResult_t result) {
  const Lock lock(machine().mutex);
  fail_device(device, result);
}

uint64_t nccl_messages() {
  const Lock lock(machine().mutex);
  return nccl().messages;
}
uint64_t nccl_bytes() {
  const Lock lock(machine().mutex);
  return nccl().bytes;
}
uint64_t nccl_groups() {
  const Lock lock(machine().mutex);
  return nccl().groups;
}
int live_nccl_communicators() {
  const Lock lock(machine().mutex);
  return static_cast<int>(nccl().live.size());
}

}  // namespace weft::emulated
