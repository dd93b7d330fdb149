#pragma once
// Shared by the emulator's files. Everything here is used under machine().mutex.
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/emulator.h"

namespace weft::emulated {

struct Work {
  std::function<bool()> run;  // returns false if it cannot go on yet; it is called again later
  // The peers of a message wait for it, so it runs as soon as its stream reaches it, although
  // nothing here waits for it.
  bool on_its_own = false;
};
// Makes work of a function that never has to wait.
template <class Function>
Work at_once(Function function) {
  return {[function = std::move(function)] {
    function();
    return true;
  }};
}

struct Capture;

// ---- device memory (memory.cc)

// A range of device memory. Its pages open when device work first touches them, and close after
// that work.
struct Region {
  size_t bytes = 0;
  int device = 0;
  uintptr_t page_begin = 0, page_end = 0;
  std::vector<bool> filled;  // per chunk: true once it holds its first content, NaN bytes
  uint64_t handle = 0;       // the handle of cuMemCreate
  bool accessible = true;    // cuMemSetAccess was called
  std::set<int> readers{};   // the devices that it named
  bool for_network = true;   // cuMemCreate was asked for access by network cards
};

}  // namespace weft::emulated

struct CUstream_st {
  int device = 0;
  std::deque<weft::emulated::Work> queue;
  uint64_t issued = 0, done = 0;
  uint64_t on_its_own = 0;  // the position of the last such work
  bool legacy = false;      // the default stream of a device
  bool asked = false;  // cudaStreamQuery has answered "not ready" since the last work was enqueued
  std::shared_ptr<weft::emulated::Capture> capture;
  std::vector<int> frontier;  // in a capture: the nodes that the next node depends on
};

struct CUevent_st {
  int device = 0;
  CUstream_st* stream = nullptr;  // null before the first record
  uint64_t position = 0;
  bool asked = false;
  std::shared_ptr<double> seconds;  // the time at which it was passed
  std::shared_ptr<weft::emulated::Capture> capture;
  std::vector<int> frontier;
};

namespace weft::emulated {

struct Node {
  Work work;
  std::vector<int> after;
};
struct Capture {
  CUstream_st* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  const void* thread = nullptr;
  bool invalid = false, ended = false;
  std::vector<Node> nodes;
  std::vector<CUstream_st*> streams;
};

// A recursive mutex that a call gives up whole while it sleeps.
class MachineMutex {
 public:
  void lock() {
    mutex_.lock();
    ++depth_;
  }
  void unlock() {
    --depth_;
    mutex_.unlock();
  }
  void sleep_without(std::chrono::microseconds time);

 private:
  std::recursive_mutex mutex_;
  int depth_ = 0;  // of the thread that holds it
};

struct Machine {
  MachineMutex mutex;
  std::vector<std::unique_ptr<CUstream_st>> streams;  // never freed: events name them
  std::vector<CUstream_st*> default_streams;          // per device
  std::vector<std::shared_ptr<Capture>> captures;     // in progress
  std::string error;                                  // sticky
  cudaError_t status = cudaSuccess;
  uint64_t changes = 0;  // counts what may let blocked work go on: work enqueued or done
  bool watches = false;  // other processes may let it go on, too
  uint64_t launches = 0;
  uint64_t graph_launches = 0;
  uint64_t copies_through_host = 0;
  size_t shared_per_block = 227 << 10;
  std::set<std::pair<int, int>> peers;  // the first may access what cudaMalloc gave of the second
};
Machine& machine();
using Lock = std::lock_guard<MachineMutex>;

int current_device();
// Stores and returns the calling thread's last error.
cudaError_t told(cudaError_t status);
// Returns an address that identifies the calling thread.
const void* this_thread_id();
void fault(cudaError_t status, const std::string& what);  // sticky

// ---- streams.cc
CUstream_st& stream_of(cudaStream_t stream);
// Runs a stream's work up to a position; false if some of it cannot go on yet.
bool run_until(CUstream_st& stream, uint64_t position);
// Runs what is on its own, of all streams, as far as it goes.
void run_on_its_own();
// Blocks the calling thread until `done`, which is asked again after each change, and lets other
// threads use the machine. If nothing moves for too long, that is a fault.
void block_until(const std::function<bool()>& done);
// Blocks until a stream's work, or that of all streams of a device, has run.
void await(CUstream_st& stream, uint64_t position);
void await_device(int device);
// Returns an error if a capture forbids waiting or allocating; such a call ends the capture.
cudaError_t forbidden_in_capture();
// The same for calls that concern the whole device: they end every capture on it, also of other
// threads. A device forbids its default stream only while a blocking stream is captured.
cudaError_t forbidden_on_device(int device);
cudaError_t submit(CUstream_st& stream, Work work);

// ---- emulated_nccl_messages.cc
// Returns the seconds after which a message that does not move is a fault.
double most_seconds();
// Describes the messages that have begun and wait for their peers, or returns "".
std::string waiting_messages();

// ---- memory.cc
// While a DeviceWork lives, the calling thread may touch device memory.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
};
// Inside a DeviceWork, a HostWork forbids it again, for host functions in streams.
class HostWork {
 public:
  HostWork();
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
};
enum class Where { kPageable, kPinned, kDevice };
Where where(const void* data);
// True if kernels and copies of a device may access device memory.
bool reaches(int device, const void* data);

// ---- symbols.cc
std::string function_at(const void* address);
// Returns the kernels' __shared__ variables, without those of templates that other files may share.
std::vector<std::span<char>> find_static_shared();

// ---- block.cc
// Returns "kernel f, block (0, 0, 0), thread (3, 0, 0)", or "" outside of kernels.
std::string running_thread();
// block_number() counts the blocks run; thread_number() is the running thread's number in its
// block.
uint64_t block_number();
int thread_number();
// shared_address() returns the shared-memory address of a byte, counted from a multiple of 1024;
// shared_byte() reads it.
unsigned shared_address(const void* shared);
uint8_t shared_byte(unsigned address);
// Lets other threads run until `ready` returns true; it is only asked when no other thread can go
// on.
void wait_until(const char* what, bool (*ready)(void*), void* argument);
// True if `data` lies after the end of the block's dynamic shared memory.
bool beyond_shared(const void* data);

}  // namespace weft::emulated
