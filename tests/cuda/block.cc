// Runs kernels block after block. A block's threads are fibers that only switch at barriers; one
// fiber runs many threads as long as none of them waits.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/cuda/intrinsics.cuh"
#include "kernels/dtype.h"
#include "tests/cuda/fiber.h"
#include "tests/cuda/machine.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace weft::emulated {

namespace {

using boost::context::detail::transfer_t;

constexpr size_t kGuard = 4096;
constexpr size_t kMostShared = 227 << 10, kSharedWithoutAsking = 48 << 10;
constexpr size_t kSharedSpan = (kMostShared + kGuard - 1) / kGuard * kGuard;

struct AsyncCopy {
  void* shared;
  const void* global;
  bool real;
};

enum class State : uint8_t {
  kUnstarted,
  kRunning,
  kAtBlockBarrier,
  kAtCollective,
  kWaiting,
  kExited
};

struct Thread {
  uint3 index{};
  int linear = 0;
  State state = State::kUnstarted;
  Fiber* fiber = nullptr;
  uint32_t mask = 0;  // lanes of the collective that it waits at
  const char* what = "";
  Finish finish = nullptr;
  void* argument = nullptr;
  bool (*ready)(void*) = nullptr;  // the condition of wait_until
  std::vector<AsyncCopy> copies;   // in flight, oldest first
  std::deque<size_t> groups;       // the copies of each committed group
  size_t open_group = 0;           // copies not committed yet
};

struct Warp {
  uint32_t exists = 0, exited = 0, waiting = 0;
};

struct Block {
  const void* kernel = nullptr;
  const std::function<void()>* thread_work = nullptr;
  std::vector<Thread> threads;  // reused by later blocks
  std::vector<Warp> warps;
  int count = 0, next = 0, exited = 0, at_barrier = 0;
  int any_predicate = 0, barrier_result = 0;
  bool reversed = false, reversed_release = false, failed = false;  // the order of the threads
  Thread* current = nullptr;
  std::deque<Thread*> ready;
  std::vector<Thread*> waiting;  // threads in wait_until
  uint64_t number = 0;
  std::vector<Fiber*> idle;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber main;
  Fiber* running = &main;
  char* shared_end = nullptr;
  size_t shared_bytes = 0;
};

Block& make_block() {
  auto* b = new Block;
  void* at = mmap(nullptr, kMostShared + 2 * kGuard, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  b->shared_end = static_cast<char*>(at) + kSharedSpan;
  mprotect(b->shared_end, kGuard, PROT_NONE);
  return *b;
}
Block& the_block = make_block();
inline Block& block() { return the_block; }

std::map<const void*, int>& shared_limits() {
  static auto* made = new std::map<const void*, int>;
  return *made;
}

std::string text(uint3 at) {
  return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
         ")";
}

void fiber_main(transfer_t from);

Fiber* new_fiber() {
  Block& b = block();
  b.fibers.push_back(std::make_unique<Fiber>());
  make_fiber(*b.fibers.back(), fiber_main);
  return b.fibers.back().get();
}

void switch_to(Fiber& to) {
  Fiber* const from = block().running;
  block().running = &to;
  jump(*from, to);
}

void make_current(Thread& thread) {
  block().current = &thread;
  threadIdx = thread.index;
}

// Returns the fiber of the first thread whose wait is over, or the one that ran the block.
Fiber& next_waiting() {
  Block& b = block();
  for (size_t i = 0; i < b.waiting.size(); ++i) {
    Thread& thread = *b.waiting[i];
    make_current(thread);
    if (!thread.ready(thread.argument)) continue;
    b.waiting.erase(b.waiting.begin() + static_cast<ptrdiff_t>(i));
    return *thread.fiber;
  }
  return b.main;
}

// Chooses the next fiber when the running one stops: a thread that can run, else a fiber for
// threads not yet started, else one whose wait is over.
Fiber& next_fiber() {
  Block& b = block();
  if (!b.ready.empty()) {
    Thread& thread = *b.ready.front();
    b.ready.pop_front();
    make_current(thread);
    return *thread.fiber;
  }
  if (b.next == b.count) return next_waiting();
  if (b.idle.empty()) return *new_fiber();
  Fiber* fiber = b.idle.back();
  b.idle.pop_back();
  return *fiber;
}

void wait_here(State state) {
  Thread& thread = *block().current;
  thread.state = state;
  thread.fiber = block().running;
  switch_to(next_fiber());
  thread.state = State::kRunning;
}

void go_on(Thread& thread) { block().ready.push_back(&thread); }

// Finishes the collective of `group` if all of its lanes have arrived; `self` is already running.
bool finish_if_complete(int warp_index, uint32_t group, const Thread* self) {
  Block& b = block();
  Warp& warp = b.warps[warp_index];
  if ((warp.waiting & group) != group) return false;
  Thread* const lanes = &b.threads[warp_index * 32];
  const Thread& first = lanes[__builtin_ctz(group)];
  void* arguments[32] = {};
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    const Thread& thread = lanes[__builtin_ctz(rest)];
    if (thread.finish != first.finish || (thread.mask & warp.exists) != (first.mask & warp.exists))
      return false;
    arguments[__builtin_ctz(rest)] = thread.argument;
  }
  first.finish(arguments, group);
  warp.waiting &= ~group;
  for (uint32_t rest = group; rest; rest &= rest - 1) {
    Thread& thread = lanes[__builtin_ctz(rest)];
    if (&thread != self) go_on(thread);
  }
  return true;
}

void thread_exits(Thread& thread) {
  Block& b = block();
  thread.state = State::kExited;
  ++b.exited;
  Warp& warp = b.warps[thread.linear / 32];
  warp.exited |= 1u << thread.linear % 32;
  if (!warp.waiting) return;  // another lane may have waited for this one alone
  const Thread& waiting = b.threads[thread.linear / 32 * 32 + __builtin_ctz(warp.waiting)];
  finish_if_complete(thread.linear / 32, waiting.mask & warp.exists & ~warp.exited, nullptr);
}

void fiber_main(transfer_t from) {
  Block& b = block();
  arrived(from, *b.running);
  for (;;) {
    while (b.next < b.count) {
      const int n = b.next++;
      Thread& thread = b.threads[b.reversed ? b.count - 1 - n : n];
      thread.state = State::kRunning;
      make_current(thread);
      (*b.thread_work)();
      thread_exits(*b.current);
    }
    b.idle.push_back(b.running);
    switch_to(next_fiber());
  }
}

void prepare(const cudaLaunchConfig_t& config) {
  Block& b = block();
  const dim3 size = config.blockDim;
  b.count = static_cast<int>(size.x * size.y * size.z);
  b.threads.resize(std::max<size_t>(b.threads.size(), (b.count + 31) / 32 * 32));
  b.warps.resize((b.count + 31) / 32);
  for (int i = 0; i < b.count; ++i) {
    Thread& thread = b.threads[i];
    thread.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    thread.linear = i;
  }
}

void start_block(uint3 at) {
  Block& b = block();
  blockIdx = at;
  b.next = b.exited = b.at_barrier = b.any_predicate = 0;
  b.reversed = !b.reversed;  // both orders: a missing barrier shows in one of them
  b.failed = false;
  ++b.number;
  for (int i = 0; i < b.count; ++i) {
    Thread& thread = b.threads[i];
    thread.state = State::kUnstarted;
    if (!thread.copies.empty() || !thread.groups.empty()) {
      thread.copies.clear();
      thread.groups.clear();
    }
    thread.open_group = 0;
  }
  for (size_t w = 0; w < b.warps.size(); ++w) {
    const int lanes = std::min(32, b.count - static_cast<int>(w) * 32);
    b.warps[w] = {.exists = lanes == 32 ? ~0u : (1u << lanes) - 1};
  }
  std::memset(b.shared_end - b.shared_bytes, 0xff, b.shared_bytes);
  static const std::vector<std::span<char>> statics = find_static_shared();
  for (const std::span<char> each : statics) std::memset(each.data(), 0xff, each.size());
}

// Says why each thread of a stuck block cannot go on: the first thread for every reason.
std::string stuck() {
  Block& b = block();
  std::map<std::string, std::pair<int, uint3>> reasons;
  for (int i = 0; i < b.count; ++i) {
    const Thread& thread = b.threads[i];
    std::string reason = "exited";
    if (thread.state == State::kAtBlockBarrier) reason = "at __syncthreads";
    if (thread.state == State::kWaiting) reason = std::string("at ") + thread.what;
    if (thread.state == State::kAtCollective) {
      char mask[16];
      std::snprintf(mask, sizeof mask, "%08x", thread.mask);
      reason = std::string("at ") + thread.what + " of lanes " + mask;
    }
    auto [entry, fresh] = reasons.try_emplace(reason, 0, thread.index);
    ++entry->second.first;
  }
  std::string text_of;
  for (const auto& [reason, who] : reasons)
    text_of += "; " + std::to_string(who.first) + " threads " + reason + ", the first is " +
               text(who.second);
  return text_of;
}

// Restarts the fibers of a block that was abandoned.
void abandon() {
  Block& b = block();
  b.ready.clear();
  b.waiting.clear();
  b.idle.clear();
  for (const auto& fiber : b.fibers) {
    begin_anew(*fiber, fiber_main);
    b.idle.push_back(fiber.get());
  }
  b.running = &b.main;
}

bool run_block(uint3 at) {
  Block& b = block();
  start_block(at);
  switch_to(next_fiber());
  if (!b.failed && b.exited == b.count) return true;
  if (!b.failed)
    fault(cudaErrorLaunchFailure, "kernel " + function_at(b.kernel) + ", block " + text(at) +
                                      ": not all threads reach a barrier" + stuck());
  abandon();
  return false;
}

void run_kernel(const cudaLaunchConfig_t& config, const void* kernel,
                const std::function<void()>& thread_work) {
  Block& b = block();
  b.kernel = kernel;
  b.thread_work = &thread_work;
  b.shared_bytes = (config.dynamicSmemBytes + 127) / 128 * 128;
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  prepare(config);
  const auto run_all = [&] {
    for (unsigned z = 0; z < gridDim.z; ++z)
      for (unsigned y = 0; y < gridDim.y; ++y)
        for (unsigned x = 0; x < gridDim.x; ++x)
          if (!run_block({x, y, z})) return;
  };
  run_all();
  b.kernel = nullptr;
  b.current = nullptr;
}

}  // namespace

std::string running_thread() {
  const Block& b = block();
  if (!b.kernel || !b.current) return "";
  return "kernel " + function_at(b.kernel) + ", block " + text(blockIdx) + ", thread " +
         text(b.current->index);
}

uint64_t block_number() { return block().number; }
int thread_number() { return block().current->linear; }

unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(static_cast<const char*>(shared) -
                               (block().shared_end - kSharedSpan));
}
uint8_t shared_byte(unsigned address) {
  return static_cast<uint8_t>((block().shared_end - kSharedSpan)[address]);
}

void wait_until(const char* what, bool (*ready)(void*), void* argument) {
  Block& b = block();
  Thread& thread = *b.current;
  thread.what = what;
  thread.ready = ready;
  thread.argument = argument;
  b.waiting.push_back(&thread);
  wait_here(State::kWaiting);
}

bool beyond_shared(const void* data) {
  const auto* at = static_cast<const char*>(data);
  return at >= block().shared_end && at < block().shared_end + kGuard;
}

void device_fault(const char* what) {
  Block& b = block();
  fault(cudaErrorLaunchFailure, running_thread() + ": " + what);
  b.failed = true;
  switch_to(b.main);
  std::abort();  // never reached: the fiber is abandoned
}

void sync_block() { sync_block_or(0); }

int sync_block_or(int predicate) {
  Block& b = block();
  b.any_predicate |= predicate != 0;
  if (++b.at_barrier < b.count) {
    wait_here(State::kAtBlockBarrier);
    return b.barrier_result;
  }
  b.at_barrier = 0;
  b.barrier_result = std::exchange(b.any_predicate, 0);
  b.reversed_release = !b.reversed_release;
  for (int i = 0; i < b.count; ++i) {
    Thread& thread = b.threads[b.reversed_release ? b.count - 1 - i : i];
    if (&thread != b.current) go_on(thread);
  }
  return b.barrier_result;
}

int lane() { return block().current->linear % 32; }

void collective(uint32_t mask, const char* what, Finish finish, void* argument, bool aligned) {
  Block& b = block();
  Thread& thread = *b.current;
  const int index = thread.linear / 32;
  Warp& warp = b.warps[index];
  if (!(mask >> thread.linear % 32 & 1))
    device_fault("the mask of a warp instruction lacks the calling lane");
  if (aligned && (warp.exited || warp.exists != ~0u))
    device_fault("a lane is missing at an instruction of the whole warp");
  thread.mask = mask;
  thread.what = what;
  thread.finish = finish;
  thread.argument = argument;
  warp.waiting |= 1u << thread.linear % 32;
  if (!finish_if_complete(index, mask & warp.exists & ~warp.exited, &thread))
    wait_here(State::kAtCollective);
}

namespace {
struct Vote {
  bool predicate;
  uint32_t result;
};
}  // namespace

uint32_t ballot(uint32_t mask, bool predicate) {
  Vote mine{predicate, 0};
  collective(
      mask, "a vote",
      [](void* const(&arguments)[32], uint32_t lanes) {
        uint32_t result = 0;
        for (int i = 0; i < 32; ++i)
          if ((lanes >> i & 1) && static_cast<Vote*>(arguments[i])->predicate) result |= 1u << i;
        for (int i = 0; i < 32; ++i)
          if (lanes >> i & 1) static_cast<Vote*>(arguments[i])->result = result;
      },
      &mine, false);
  return mine.result;
}

void* dynamic_shared() { return block().shared_end - block().shared_bytes; }

void copy_async16(void* shared, const void* global, bool real) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16)
    device_fault("copy_async16 of addresses that are not aligned to 16 bytes");
  if (where(shared) == Where::kDevice) device_fault("copy_async16 to memory that is not shared");
  if (real && where(global) == Where::kPageable)
    device_fault("copy_async16 from memory that is not global");
  std::memset(shared, 0xff, 16);
  block().current->copies.push_back({shared, global, real});
  ++block().current->open_group;
}

void copy_async_commit() {
  Thread& thread = *block().current;
  thread.groups.push_back(std::exchange(thread.open_group, 0));
}

void copy_async_wait(int newest) {
  Thread& thread = *block().current;
  size_t ready = 0;
  while (thread.groups.size() > static_cast<size_t>(newest)) {
    ready += thread.groups.front();
    thread.groups.pop_front();
  }
  for (size_t i = 0; i < ready; ++i) {
    const AsyncCopy copy = thread.copies[i];
    if (copy.real)
      std::memcpy(copy.shared, copy.global, 16);
    else
      std::memset(copy.shared, 0, 16);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<ptrdiff_t>(ready));
}

namespace {
struct MatrixLoad {
  uint32_t (*out)[4];
  const void* row;
};
struct Product {
  float* c;
  const uint32_t *a, *b;
};

float half_of(uint32_t pair, int which) {
  return to_float(bf16{static_cast<uint16_t>(pair >> (16 * which))});
}

void finish_load(void* const (&arguments)[32], bool transposed) {
  uint16_t rows[32][8];
  for (int i = 0; i < 32; ++i)
    std::memcpy(rows[i], static_cast<MatrixLoad*>(arguments[i])->row, 16);
  for (int t = 0; t < 32; ++t)
    for (int m = 0; m < 4; ++m) {
      const int r = t / 4, c = t % 4 * 2;
      const uint32_t low = transposed ? rows[8 * m + c][r] : rows[8 * m + r][c];
      const uint32_t high = transposed ? rows[8 * m + c + 1][r] : rows[8 * m + r][c + 1];
      (*static_cast<MatrixLoad*>(arguments[t])->out)[m] = low | high << 16;
    }
}
}  // namespace

void load_matrices(uint32_t (&out)[4], const void* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16)
    device_fault("load_matrices of a row that is not aligned to 16 bytes");
  MatrixLoad mine{&out, row};
  if (transposed)
    collective(
        ~0u, "load_matrices_transposed",
        [](void* const(&arguments)[32], uint32_t) { finish_load(arguments, true); }, &mine, true);
  else
    collective(
        ~0u, "load_matrices",
        [](void* const(&arguments)[32], uint32_t) { finish_load(arguments, false); }, &mine, true);
}

void multiply_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Product mine{c, a, b};
  collective(
      ~0u, "multiply_bf16",
      [](void* const(&arguments)[32], uint32_t) {
        float left[16][16], right[8][16];  // [row][k], [column][k]
        for (int t = 0; t < 32; ++t) {
          const auto* from = static_cast<const Product*>(arguments[t]);
          const int g = t / 4, i = t % 4 * 2;
          for (int half = 0; half < 2; ++half) {
            left[g][i + half] = half_of(from->a[0], half);
            left[g + 8][i + half] = half_of(from->a[1], half);
            left[g][i + 8 + half] = half_of(from->a[2], half);
            left[g + 8][i + 8 + half] = half_of(from->a[3], half);
            right[g][i + half] = half_of(from->b[0], half);
            right[g][i + 8 + half] = half_of(from->b[1], half);
          }
        }
        for (int t = 0; t < 32; ++t) {
          float* to = static_cast<Product*>(arguments[t])->c;
          for (int value = 0; value < 4; ++value) {
            const int row = t / 4 + value / 2 * 8, column = t % 4 * 2 + value % 2;
            float sum = 0;
            for (int k = 0; k < 16; ++k) sum += left[row][k] * right[column][k];
            to[value] += sum;
          }
        }
      },
      &mine, true);
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> thread) {
  const Lock lock(machine().mutex);
  const dim3 grid = config.gridDim, size = config.blockDim;
  const uint64_t threads = uint64_t{size.x} * size.y * size.z;
  if (threads == 0 || size.x > 1024 || size.y > 1024 || size.z > 64 || threads > 1024)
    return told(cudaErrorInvalidConfiguration);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535)
    return told(cudaErrorInvalidConfiguration);
  const auto asked = shared_limits().find(kernel);
  const size_t most = asked == shared_limits().end() ? kSharedWithoutAsking : asked->second;
  if (config.dynamicSmemBytes > std::max(most, kSharedWithoutAsking))
    return told(cudaErrorInvalidValue);
  ++machine().launches;
  return told(
      submit(stream_of(config.stream), at_once([config, kernel, thread = std::move(thread)] {
               run_kernel(config, kernel, thread);
             })));
}

}  // namespace weft::emulated

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const weft::emulated::Lock lock(weft::emulated::machine().mutex);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                         weft::emulated::current_device());
  if (value < 0 || value > most) return weft::emulated::told(cudaErrorInvalidValue);
  weft::emulated::shared_limits()[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) {
  const weft::emulated::Lock lock(weft::emulated::machine().mutex);
  static const bool absent = std::getenv("WEFT_EMULATED_NO_CODE") != nullptr;
  return weft::emulated::told(absent ? cudaErrorNoKernelImageForDevice : cudaSuccess);
}
