#pragma once
// What the emulator's files share. Everything here is used under machine().mutex.
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

using Work = std::function<void()>;

struct Capture;

// ---- device memory (memory.cc)

// Memory with addresses. Pages open at the first touch by device work, and close behind it.
struct Region {
  size_t bytes = 0;
  int device = 0;
  uintptr_t page_begin = 0, page_end = 0;
  std::vector<bool> filled;  // per chunk: has its first content, NaN bytes
  uint64_t handle = 0;       // of cuMemCreate
  bool accessible = true;    // cuMemSetAccess was called
};

}  // namespace weft::emulated

struct CUstream_st {
  int device = 0;
  std::deque<weft::emulated::Work> queue;
  uint64_t issued = 0, done = 0;
  bool asked = false;  // cudaStreamQuery has answered "not ready" since the last work
  std::shared_ptr<weft::emulated::Capture> capture;
  std::vector<int> frontier;  // in a capture: the nodes that the next one waits for
};

struct CUevent_st {
  int device = 0;
  CUstream_st* stream = nullptr;  // null before the first record
  uint64_t position = 0;
  bool asked = false;
  std::shared_ptr<double> seconds;  // when it was passed
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

struct Machine {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<CUstream_st>> streams;  // never freed: events name them
  std::vector<CUstream_st*> default_streams;          // per device
  std::vector<std::shared_ptr<Capture>> captures;     // under way
  std::string error;                                  // sticky
  cudaError_t status = cudaSuccess;
  uint64_t launches = 0;
  uint64_t graph_launches = 0;
};
Machine& machine();
using Lock = std::lock_guard<std::recursive_mutex>;

int current_device();
// Keeps the calling thread's last error, returns it.
cudaError_t told(cudaError_t status);
// The address of something of the calling thread: which thread.
const void* this_thread_id();
void fault(cudaError_t status, const std::string& what);  // sticky

// ---- streams.cc
CUstream_st& stream_of(cudaStream_t stream);
void run_until(CUstream_st& stream, uint64_t position);
void run_device(int device);
// An error where a capture forbids what waits or allocates; such a call ends the capture.
cudaError_t forbidden_in_capture();
cudaError_t submit(CUstream_st& stream, Work work);

// ---- memory.cc
// Device memory may be touched by the calling thread while one lives.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
};
// The opposite inside of it, for host functions in streams.
class HostWork {
 public:
  HostWork();
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;
};
enum class Where { kPageable, kPinned, kDevice };
Where where(const void* data);

// ---- symbols.cc
std::string function_at(const void* address);
// The kernels' __shared__ variables. Not those of templates that other files may share.
std::vector<std::span<char>> find_static_shared();

// ---- block.cc
// "kernel f, block (0, 0, 0), thread (3, 0, 0)", "" outside of kernels.
std::string running_thread();
// Counts the blocks run; the number of the running thread in its block.
uint64_t block_number();
int thread_number();
// A byte of shared memory by its address there, which counts from a multiple of 1024.
unsigned shared_address(const void* shared);
uint8_t shared_byte(unsigned address);
// Lets the others run until `ready` says yes; it is asked when nobody else can go on.
void wait_until(const char* what, bool (*ready)(void*), void* argument);
// Whether `data` lies behind the block's dynamic shared memory.
bool beyond_shared(const void* data);

}  // namespace weft::emulated
