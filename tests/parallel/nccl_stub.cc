#include "tests/parallel/nccl_stub.h"

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

struct StubComm;
struct Group {
  int left = 0;
  Clock::time_point done_at{};
  bool dropped = false;
};
struct Op {
  StubComm* comm;
  bool receive;
  int peer;
  char* data;
  size_t bytes;
  cudaStream_t stream;
  std::shared_ptr<Group> group;
};
struct StubComm {
  std::string id;
  int rank, size;
  int in_progress = 1;  // the number of state queries that answer ncclInProgress
  std::shared_ptr<Group> last = nullptr;
};
struct StubStream {
  std::shared_ptr<Group> last;
};
struct StubEvent {
  std::shared_ptr<Group> group;
};

struct World {
  std::mutex lock;
  int ids = 0;
  std::map<std::string, std::set<int>> joined;
  std::set<int> never_ready;
  std::map<int, ncclResult_t> errors;
  std::map<std::tuple<std::string, int, int>, std::deque<Op>> sends, receives;  // (id, from, to)
  std::map<void*, size_t> buffers;
  std::set<StubComm*> comms;
  int aborted = 0, handles = 0, event_waits = 0;
  int64_t moved = 0;
  bool held = false;
  std::string faults;
};
World* world = nullptr;
thread_local int depth = 0;
thread_local std::vector<Op> group;

StubComm& of(ncclComm_t comm) { return *reinterpret_cast<StubComm*>(comm); }

bool on_device(const void* data, size_t bytes) {
  for (const auto& [begin, size] : world->buffers)
    if (data >= begin &&
        static_cast<const char*>(data) + bytes <= static_cast<const char*>(begin) + size)
      return true;
  return false;
}

bool pending(const std::shared_ptr<Group>& one) {
  return one && !one->dropped && (one->left > 0 || world->held || Clock::now() < one->done_at);
}

void match(const std::tuple<std::string, int, int>& pair) {
  auto& sends = world->sends[pair];
  auto& receives = world->receives[pair];
  while (!sends.empty() && !receives.empty()) {
    Op send = sends.front(), receive = receives.front();
    sends.pop_front();
    receives.pop_front();
    if (send.bytes != receive.bytes) {
      world->faults += "sizes of a pair differ\n";
    } else {
      std::memcpy(receive.data, send.data, send.bytes);
      world->moved += static_cast<int64_t>(send.bytes);
    }
    for (Op* op : {&send, &receive}) {
      --op->group->left;
      op->group->done_at = Clock::now() + std::chrono::microseconds(50);
    }
  }
}

// --- NCCL ---

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::lock_guard guard(world->lock);
  std::memset(id->internal, 0xa7, sizeof id->internal);
  std::snprintf(id->internal, 32, "stub %d", ++world->ids);
  return ncclSuccess;
}

ncclResult_t comm_init_rank_config(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                   ncclConfig_t* config) {
  const std::lock_guard guard(world->lock);
  auto* made =
      new StubComm{.id = std::string(id.internal, sizeof id.internal), .rank = rank, .size = ranks};
  if (config->blocking != 0) world->faults += "a blocking communicator\n";
  world->joined[made->id].insert(rank);
  world->comms.insert(made);
  *comm = reinterpret_cast<ncclComm_t>(made);
  return ncclInProgress;
}

ncclResult_t comm_get_async_error(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard guard(world->lock);
  StubComm& one = of(comm);
  const auto& joined = world->joined[one.id];
  bool ready = static_cast<int>(joined.size()) == one.size;
  for (int rank : world->never_ready) ready = ready && !joined.contains(rank);
  if (world->errors.contains(one.rank))
    *state = world->errors[one.rank];
  else if (!ready || one.in_progress-- > 0)
    *state = ncclInProgress;
  else
    *state = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t comm_finalize(ncclComm_t comm) {
  of(comm).in_progress = 1;
  return ncclInProgress;
}

void forget(StubComm* one) {
  world->comms.erase(one);
  delete one;
}

ncclResult_t comm_destroy(ncclComm_t comm) {
  const std::lock_guard guard(world->lock);
  forget(&of(comm));
  return ncclSuccess;
}

ncclResult_t comm_abort(ncclComm_t comm) {
  const std::lock_guard guard(world->lock);
  StubComm* one = &of(comm);
  for (auto* lanes : {&world->sends, &world->receives})
    for (auto& [pair, ops] : *lanes)
      std::erase_if(ops, [&](const Op& op) { return op.comm == one; });
  if (one->last) one->last->dropped = true;
  ++world->aborted;
  forget(one);
  return ncclSuccess;
}

const char* error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "stub remote error" : "stub error";
}
const char* last_error(ncclComm_t) { return "the stub's last error"; }

ncclResult_t group_start() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t add(bool receive, const void* data, size_t count, ncclDataType_t type, int peer,
                 ncclComm_t comm, cudaStream_t stream) {
  const std::lock_guard guard(world->lock);
  if (depth == 0) world->faults += "a message outside of a group\n";
  if (type != ncclInt8) world->faults += "not bytes\n";
  if (!on_device(data, count)) world->faults += "memory that is not a device's\n";
  group.push_back({&of(comm), receive, peer, static_cast<char*>(const_cast<void*>(data)), count,
                   stream, nullptr});
  return ncclInProgress;
}
ncclResult_t send(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(false, data, count, type, peer, comm, stream);
}
ncclResult_t recv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return add(true, data, count, type, peer, comm, stream);
}

ncclResult_t group_end() {
  const std::lock_guard guard(world->lock);
  if (--depth > 0) return ncclSuccess;
  auto made = std::make_shared<Group>();
  made->left = static_cast<int>(group.size());
  for (Op& op : group) {
    op.group = made;
    auto& stream = *reinterpret_cast<StubStream*>(op.stream);
    if (stream.last != made && pending(stream.last)) world->faults += "two groups at once\n";
    stream.last = op.comm->last = made;
    op.comm->in_progress = 1;
    const auto& id = op.comm->id;
    if (op.receive)
      world->receives[{id, op.peer, op.comm->rank}].push_back(op);
    else
      world->sends[{id, op.comm->rank, op.peer}].push_back(op);
  }
  for (const Op& op : group)
    match(op.receive ? std::tuple{op.comm->id, op.peer, op.comm->rank}
                     : std::tuple{op.comm->id, op.comm->rank, op.peer});
  group.clear();
  return ncclInProgress;
}

// --- CUDA ---

cudaError_t set_device(int device) { return device < 16 ? cudaSuccess : cudaErrorInvalidDevice; }
const char* cuda_error_string(cudaError_t) { return "stub CUDA error"; }

cudaError_t pointer_get_attributes(cudaPointerAttributes* attributes, const void* data) {
  const std::lock_guard guard(world->lock);
  attributes->type = on_device(data, 1) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

template <class Handle, class Made>
cudaError_t create(Handle* handle) {
  const std::lock_guard guard(world->lock);
  ++world->handles;
  *handle = reinterpret_cast<Handle>(new Made);
  return cudaSuccess;
}
template <class Made, class Handle>
cudaError_t destroy(Handle handle) {
  const std::lock_guard guard(world->lock);
  --world->handles;
  delete reinterpret_cast<Made*>(handle);
  return cudaSuccess;
}
cudaError_t stream_create(cudaStream_t* stream, unsigned) {
  return create<cudaStream_t, StubStream>(stream);
}
cudaError_t stream_destroy(cudaStream_t stream) { return destroy<StubStream>(stream); }
cudaError_t event_create(cudaEvent_t* event, unsigned) {
  return create<cudaEvent_t, StubEvent>(event);
}
cudaError_t event_destroy(cudaEvent_t event) { return destroy<StubEvent>(event); }

cudaError_t stream_wait_event(cudaStream_t, cudaEvent_t event, unsigned) {
  const std::lock_guard guard(world->lock);
  if (event) ++world->event_waits;
  return cudaSuccess;
}
cudaError_t event_record(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard guard(world->lock);
  auto* one =
      reinterpret_cast<StubStream*>(stream);  // null is the default stream, which has no work
  reinterpret_cast<StubEvent*>(event)->group = one ? one->last : nullptr;
  return cudaSuccess;
}
cudaError_t event_query(cudaEvent_t event) {
  const std::lock_guard guard(world->lock);
  return pending(reinterpret_cast<StubEvent*>(event)->group) ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t device_malloc(void** data, size_t bytes) {
  *data = NcclStub::allocate(bytes);
  return cudaSuccess;
}
cudaError_t device_free(void* data) {
  NcclStub::release(data);
  return cudaSuccess;
}
cudaError_t memcpy_async(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                         cudaStream_t stream) {
  const std::lock_guard guard(world->lock);
  if (pending(reinterpret_cast<StubStream*>(stream)->last))
    world->faults += "a copy that would wait for messages\n";
  const bool up = kind == cudaMemcpyHostToDevice;
  if (on_device(to, bytes) != up || on_device(from, bytes) == up)
    world->faults += "a copy of another direction than it says\n";
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

}  // namespace

NcclApi NcclStub::reset() {
  delete world;
  world = new World;
  NcclApi api;
  api.get_unique_id = get_unique_id;
  api.comm_init_rank_config = comm_init_rank_config;
  api.comm_get_async_error = comm_get_async_error;
  api.comm_finalize = comm_finalize;
  api.comm_destroy = comm_destroy;
  api.comm_abort = comm_abort;
  api.error_string = error_string;
  api.last_error = last_error;
  api.group_start = group_start;
  api.group_end = group_end;
  api.send = send;
  api.recv = recv;
  api.set_device = set_device;
  api.cuda_error_string = cuda_error_string;
  api.pointer_get_attributes = pointer_get_attributes;
  api.stream_create = stream_create;
  api.stream_destroy = stream_destroy;
  api.stream_wait_event = stream_wait_event;
  api.event_create = event_create;
  api.event_destroy = event_destroy;
  api.event_record = event_record;
  api.event_query = event_query;
  api.device_malloc = device_malloc;
  api.device_free = device_free;
  api.memcpy_async = memcpy_async;
  return api;
}

void NcclStub::never_ready(int rank) { world->never_ready.insert(rank); }
void NcclStub::fail(int rank, ncclResult_t error) {
  const std::lock_guard guard(world->lock);
  world->errors[rank] = error;
}
void NcclStub::hold(bool held) {
  const std::lock_guard guard(world->lock);
  world->held = held;
}
void* NcclStub::allocate(size_t bytes) {
  const std::lock_guard guard(world->lock);
  void* data = ::operator new(bytes);
  world->buffers[data] = bytes;
  return data;
}
void NcclStub::release(void* memory) {
  const std::lock_guard guard(world->lock);
  world->buffers.erase(memory);
  ::operator delete(memory);
}
int NcclStub::live_communicators() { return static_cast<int>(world->comms.size()); }
int NcclStub::aborted() { return world->aborted; }
int NcclStub::live_buffers() {
  const std::lock_guard guard(world->lock);
  return static_cast<int>(world->buffers.size());
}
int NcclStub::live_handles() { return world->handles; }
int NcclStub::event_waits() { return world->event_waits; }
int64_t NcclStub::moved_bytes() { return world->moved; }
std::string NcclStub::faults() { return world->faults; }

}  // namespace weft::test
