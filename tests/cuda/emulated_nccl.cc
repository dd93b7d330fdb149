// NCCL's functions on emulated devices: communicators and groups.
#include "tests/cuda/emulated_nccl.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

namespace weft::emulated {
namespace {

namespace fs = std::filesystem;

ncclResult_t refused(ncclResult_t result, const std::string& why) {
  const Lock lock(machine().mutex);
  nccl().error = why;
  return result;
}

Comm find(ncclComm_t handle) {
  const auto found = nccl().live.find(handle);
  return found == nccl().live.end() ? nullptr : found->second;
}
ncclResult_t unknown() {
  return refused(ncclInvalidArgument, "the communicator is not one, or not any more");
}

// ---- groups

struct GroupPart {
  Comm comm;
  CUstream_st* stream;
  Exchange exchange;
};
struct OpenGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<GroupPart> parts;
};
thread_local OpenGroup open_group;

struct GroupCall {
  ncclComm_t comm;
  cudaStream_t stream;
  int peer;
  size_t bytes;
};

// Finds or makes the part of the open group that a call belongs to.
ncclResult_t enter(const GroupCall& call, std::initializer_list<const void*> memory,
                   GroupPart*& part) {
  const Comm comm = find(call.comm);
  if (!comm) return unknown();
  if (comm->error != ncclSuccess) return comm->error;
  if (call.peer < 0 || call.peer >= comm->ranks)
    return refused(ncclInvalidArgument, "peer " + std::to_string(call.peer) +
                                            " of a communicator of " + std::to_string(comm->ranks));
  for (const void* data : memory)
    if (call.bytes > 0 && (where(data) != Where::kDevice || !reaches(comm->device, data)))
      return refused(ncclInvalidArgument, "memory that the communicator's device does not reach");
  CUstream_st& stream = stream_of(call.stream);
  if (stream.device != comm->device)
    return refused(ncclInvalidArgument, "a stream of another device than the communicator's");
  for (GroupPart& each : open_group.parts) {
    if (each.comm != comm) continue;
    if (each.stream != &stream)
      return refused(ncclInvalidUsage, "a group uses a communicator on two streams");
    part = &each;
    return ncclSuccess;
  }
  part = &open_group.parts.emplace_back(comm, &stream, Exchange{});
  return ncclSuccess;
}

// Adds a call to the open group, or to a group of its own.
template <class Add>
ncclResult_t in_group(const GroupCall& call, std::initializer_list<const void*> memory, Add add) {
  const Lock lock(machine().mutex);
  ncclGroupStart();
  GroupPart* part = nullptr;
  const ncclResult_t result = enter(call, memory, part);
  if (result == ncclSuccess)
    add(*part);
  else
    open_group.error = result;
  const ncclResult_t ended = ncclGroupEnd();
  return result == ncclSuccess ? ended : result;
}

ncclResult_t issue(GroupPart& part) {
  const bool captured = part.stream->capture != nullptr;
  const uint64_t turn = captured ? 0 : part.comm->issued + 1;
  if (submit(*part.stream, nccl_kernel(part.comm, std::move(part.exchange), turn)))
    return refused(ncclUnhandledCudaError, "the stream takes no work");
  if (captured) return ncclSuccess;
  part.comm->issued = turn;
  part.comm->stream = part.stream;
  part.comm->position = part.stream->issued;
  return ncclSuccess;
}

// ---- communicators

fs::path rank_file(const ncclComm& comm, int rank) {
  return fs::path(comm.folder) / ("rank." + std::to_string(rank));
}
fs::path left_file(const ncclComm& comm, int rank) {
  return fs::path(comm.folder) / ("left." + std::to_string(rank));
}

struct RankEntry {
  std::string device;  // all processes see the same devices of one host
  pid_t process = 0;
};

RankEntry own_entry() {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, current_device());
  std::string device;
  for (const char byte : properties.uuid.bytes)
    device += std::to_string(static_cast<unsigned char>(byte)) + ".";
  return {device, getpid()};
}

RankEntry read_entry(const ncclComm& comm, int rank) {
  RankEntry entry;
  std::ifstream(rank_file(comm, rank)) >> entry.device >> entry.process;
  return entry;
}

// The last rank removes the folder. Processes that have died have left.
void leave(const ncclComm& comm) {
  std::ofstream(left_file(comm, comm.rank)).put('\n');
  for (int rank = 0; rank < comm.ranks; ++rank) {
    const pid_t process = read_entry(comm, rank).process;
    const bool there = process > 0 && (kill(process, 0) == 0 || errno != ESRCH);
    if (there && !fs::exists(left_file(comm, rank))) return;
  }
  std::error_code another_was_faster;
  fs::remove_all(comm.folder, another_was_faster);
}

ncclResult_t enrol(const ncclComm& comm) {
  const RankEntry own = own_entry();
  static std::atomic<int> parts = 0;
  const fs::path part = fs::path(comm.folder) /
                        ("part." + std::to_string(own.process) + "." + std::to_string(++parts));
  std::ofstream out(part);
  out << own.device << ' ' << own.process << '\n';
  out.close();
  if (!out) return refused(ncclSystemError, "cannot write " + part.string());
  std::error_code exists;
  fs::create_hard_link(part, rank_file(comm, comm.rank), exists);
  fs::remove(part);
  if (exists) return refused(ncclInvalidUsage, "rank " + std::to_string(comm.rank) + " is taken");
  return ncclSuccess;
}

// Waits for all ranks, and checks that each has a device of its own.
ncclResult_t meet(ncclComm& comm) {
  using Clock = std::chrono::steady_clock;
  const auto limit = Clock::now() + std::chrono::duration<double>(most_seconds());
  for (int rank = 0; rank < comm.ranks; ++rank)
    while (!fs::exists(rank_file(comm, rank))) {
      if (Clock::now() > limit)
        return refused(ncclSystemError, "rank " + std::to_string(rank) + " does not come");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  std::map<std::string, int> devices;
  for (int rank = 0; rank < comm.ranks; ++rank) {
    const RankEntry entry = read_entry(comm, rank);
    const auto [other, free] = devices.insert({entry.device, rank});
    if (!free)
      return refused(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) +
                                           " and rank " + std::to_string(other->second) +
                                           " both on CUDA device");
    comm.elsewhere = comm.elsewhere || entry.process != getpid();
  }
  return ncclSuccess;
}

bool any_elsewhere() {
  return std::ranges::any_of(nccl().live, [](const auto& one) { return one.second->elsewhere; });
}

// While a communicator has ranks in other processes, a thread runs its messages: a device's
// kernels run although no host call of their process waits.
void watch() {
  if (machine().watches || !any_elsewhere()) return;
  machine().watches = true;
  std::thread([] {
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const Lock lock(machine().mutex);
      machine().watches = any_elsewhere();
      if (!machine().watches) return;
      run_on_its_own();
    }
  }).detach();
}

// Blocks until all that was issued has run.
void finish(ncclComm& comm) {
  block_until([&] {
    if (machine().status != cudaSuccess || comm.error != ncclSuccess) return true;
    if (comm.state != ncclComm::State::kLive) return true;
    return (!comm.stream || run_until(*comm.stream, comm.position)) && !comm.active;
  });
}

void drop(const Comm& comm, ncclComm::State state) {
  comm->state = state;
  comm->active.reset();
  nccl().live.erase(comm.get());
  ++machine().changes;
  leave(*comm);
}

}  // namespace
}  // namespace weft::emulated

using namespace weft::emulated;  // NOLINT: NCCL's functions are global

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const char* tmp = std::getenv("TMPDIR");
  std::string folder = std::string(tmp && *tmp ? tmp : "/tmp") + "/weft_nccl_XXXXXX";
  if (folder.size() >= NCCL_UNIQUE_ID_BYTES || !mkdtemp(folder.data()))
    return refused(ncclSystemError, "cannot make " + folder);
  *id = {};
  std::ranges::copy(folder, id->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *comm = nullptr;
  if (open_group.depth > 0) return refused(ncclInvalidUsage, "no communicator starts in a group");
  if (ranks < 1 || rank < 0 || rank >= ranks)
    return refused(ncclInvalidArgument,
                   "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  if (config && (config->magic != NCCL_CONFIG_MAGIC || config->size != sizeof *config))
    return refused(ncclInvalidArgument, "a configuration without NCCL_CONFIG_INITIALIZER");
  {
    const Lock lock(machine().mutex);
    if (forbidden_in_capture()) return refused(ncclUnhandledCudaError, "a capture is open");
  }
  const auto made = std::make_shared<ncclComm>();
  made->folder = id.internal;
  made->rank = rank;
  made->ranks = ranks;
  made->device = current_device();
  if (const ncclResult_t no = enrol(*made)) return no;
  if (const ncclResult_t no = meet(*made)) {
    leave(*made);
    return no;
  }
  const Lock lock(machine().mutex);
  nccl().live[made.get()] = made;
  watch();
  *comm = made.get();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const Lock lock(machine().mutex);
  const Comm comm = find(handle);
  if (!comm) return unknown();
  *error = machine().status != cudaSuccess ? ncclUnhandledCudaError : comm->error;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  const Lock lock(machine().mutex);
  const Comm comm = find(handle);
  if (!comm) return unknown();
  finish(*comm);
  return machine().status != cudaSuccess ? ncclUnhandledCudaError : comm->error;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const Lock lock(machine().mutex);
  const Comm comm = find(handle);
  if (!comm) return unknown();
  finish(*comm);
  if (comm->state == ncclComm::State::kLive)
    drop(comm,
         comm->error == ncclSuccess ? ncclComm::State::kDestroyed : ncclComm::State::kAborted);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const Lock lock(machine().mutex);
  const Comm comm = find(handle);
  if (!comm) return unknown();
  drop(comm, ncclComm::State::kAborted);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  const Lock lock(machine().mutex);
  text = nccl().error;
  return text.c_str();
}

ncclResult_t ncclGroupStart() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const Lock lock(machine().mutex);
  if (open_group.depth == 0) return refused(ncclInvalidUsage, "no group is open");
  if (--open_group.depth > 0) return ncclSuccess;
  OpenGroup group = std::exchange(open_group, {});
  for (GroupPart& part : group.parts)
    if (group.error == ncclSuccess) group.error = issue(part);
  return group.error;
}

namespace {

size_t size_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 1; }

}  // namespace

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  return in_group({comm, stream, peer, bytes}, {data}, [&](GroupPart& part) {
    auto* from = static_cast<char*>(const_cast<void*>(data));  // it is only read
    part.exchange.messages.push_back({.peer = peer, .data = from, .bytes = bytes});
  });
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  return in_group({comm, stream, peer, bytes}, {data}, [&](GroupPart& part) {
    part.exchange.messages.push_back(
        {.receives = true, .peer = peer, .data = static_cast<char*>(data), .bytes = bytes});
  });
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclFloat32) return refused(ncclInvalidArgument, "only floats are added");
  const size_t bytes = count * sizeof(float);
  return in_group({comm, stream, 0, bytes}, {from, to}, [&](GroupPart& part) {
    Sum sum{static_cast<const float*>(from), static_cast<float*>(to), count, {}};
    auto& messages = part.exchange.messages;
    auto* own = static_cast<char*>(const_cast<void*>(from));  // it is only read
    for (int peer = 0; peer < part.comm->ranks; ++peer) {
      if (peer == part.comm->rank) continue;
      messages.push_back({.peer = peer, .data = own, .bytes = bytes, .counts = false});
      sum.received.push_back(messages.size());
      messages.push_back({.receives = true, .peer = peer, .bytes = bytes, .counts = false});
    }
    part.exchange.sums.push_back(std::move(sum));
  });
}
