#include "kernels/cuda/queue.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "kernels/cuda/device.h"
#include "kernels/cuda/message_queues.h"
#include "kernels/cuda/reasons.h"
#include "kernels/ops.h"

namespace weft {

namespace {

constexpr size_t kScratchLimit = size_t{64} << 30;  // address space, not memory

// The process's queues.
struct Queues {
  std::mutex mutex;
  std::set<const CudaQueue*> all, carriers;
};
Queues& queues() {
  static auto* made = new Queues;  // never destroyed: queues of static streams outlive it
  return *made;
}

// Lets a device reach what cudaMalloc gives of another one. Without, a copy goes through the host.
// Arenas name their readers themselves (memory.cc).
void reach(int index, int other) {
  int can = 0;
  WEFT_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, index, other));
  if (!can) return;
  const CudaDeviceScope scope(index);
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status != cudaErrorPeerAccessAlreadyEnabled) WEFT_CUDA_CHECK(status);
  cudaGetLastError();
}

}  // namespace

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    int device = 0;
    cudaGetDevice(&device);
    throw Error(ErrorKind::kMemory, shortage_on(device, std::string("asked by ") + call));
  }
  const std::string text = std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                           cudaGetErrorString(status);
  if (status == cudaErrorStreamCaptureUnsupported) throw NotRecordable(ErrorKind::kInternal, text);
  throw Error(ErrorKind::kInternal, text);
}

CudaDeviceScope::CudaDeviceScope(int index) {
  WEFT_CUDA_CHECK(cudaGetDevice(&before_));
  if (before_ != index) WEFT_CUDA_CHECK(cudaSetDevice(index));
}

CudaDeviceScope::~CudaDeviceScope() { cudaSetDevice(before_); }

CudaQueue::CudaQueue(int index) : index_(index) {
  const CudaDeviceScope scope(index);
  cudaDeviceProp properties{};
  WEFT_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  properties_ = {.multiprocessors = properties.multiProcessorCount,
                 .major = properties.major,
                 .minor = properties.minor,
                 .shared_per_block = properties.sharedMemPerBlockOptin,
                 .l2_bytes = static_cast<size_t>(properties.l2CacheSize),
                 .name = properties.name};
  if (properties_.major < 8)
    throw Error(ErrorKind::kUsage, described() + "; legal: 8.0 (Ampere) and newer");
  check_code();
  WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  scratch_ = std::make_unique<DeviceRange>(Device{Device::Kind::kCuda, static_cast<int8_t>(index)},
                                           kScratchLimit);
  const std::lock_guard lock(queues().mutex);
  for (const CudaQueue* other : queues().all) {
    if (other->index() == index) continue;
    reach(index, other->index());
    reach(other->index(), index);
  }
  queues().all.insert(this);
}

CudaQueue::~CudaQueue() {
  {
    const std::lock_guard lock(queues().mutex);
    queues().all.erase(this);
    queues().carriers.erase(this);
  }
  cudaSetDevice(index_);
  cudaStreamSynchronize(stream_);
  parts_.clear();
  cudaStreamDestroy(stream_);
}

std::string CudaQueue::described() const {
  return "--device cuda:" + std::to_string(index_) + ": " + properties_.name +
         " has compute capability " + std::to_string(properties_.major) + "." +
         std::to_string(properties_.minor);
}

void CudaQueue::check_code() const {
  const cudaError_t status = cuda::code_status();
  const std::string absent = absent_code(status);
  if (!absent.empty()) throw Error(ErrorKind::kUsage, described() + ", " + absent);
  WEFT_CUDA_CHECK(status);
}

void CudaQueue::sync() {
  const CudaDeviceScope scope(index_);
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream_));
}

void CudaQueue::trim() {
  scratch_->trim(0);
  scratch_asked_ = 0;
}

void* CudaQueue::scratch(size_t bytes) {
  scratch_->commit(bytes);
  scratch_asked_ = std::max(scratch_asked_, bytes);
  return scratch_->base();
}

namespace {

// False too after a fault of the device, when memory is freed all the same.
bool is_recorded(const CudaQueue& queue) {
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(queue.stream(), &recording);
  return recording != cudaStreamCaptureStatusNone;
}

// True where a query says that work is left; the runtime keeps that as its last error.
bool is_not_ready(cudaError_t query) {
  if (query == cudaErrorNotReady) cudaGetLastError();
  return query == cudaErrorNotReady;
}

}  // namespace

void wait_for_queues(int index) {
  const std::lock_guard lock(queues().mutex);
  for (const CudaQueue* queue : queues().all) {
    if (queue->index() != index || is_recorded(*queue)) continue;
    const cudaError_t status = cudaStreamSynchronize(queue->stream());
    if (status != cudaErrorStreamCaptureUnsupported) WEFT_CUDA_CHECK(status);  // begun since
  }
}

ComputingSoFar::ComputingSoFar(int index) {
  const std::lock_guard lock(queues().mutex);
  for (const CudaQueue* queue : queues().all) {
    if (queue->index() != index || queues().carriers.contains(queue) || is_recorded(*queue))
      continue;
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, queue->stream());
    events_.emplace_back(event, cudaEventDestroy);
  }
}

bool ComputingSoFar::done() const {
  return std::ranges::none_of(
      events_, [](const auto& event) { return is_not_ready(cudaEventQuery(event.get())); });
}

void carry_messages(const CudaQueue& queue) {
  const std::lock_guard lock(queues().mutex);
  queues().carriers.insert(&queue);
}

bool messages_wait(int index) {
  const std::lock_guard lock(queues().mutex);
  return std::ranges::any_of(queues().carriers, [&](const CudaQueue* queue) {
    return queue->index() == index && !is_recorded(*queue) &&
           is_not_ready(cudaStreamQuery(queue->stream()));
  });
}

CudaQueue& cuda_queue(const Stream& stream) {
  CHECK(stream.device().kind == Device::Kind::kCuda && stream.queue(), "not a CUDA stream");
  auto& queue = static_cast<CudaQueue&>(*stream.queue());
  WEFT_CUDA_CHECK(cudaSetDevice(queue.index()));
  return queue;
}

Stream cuda_stream(int index, Determinism determinism, int threads) {
  const int count = cuda_device_count();
  if (index < 0 || index >= count)
    throw Error(ErrorKind::kUsage,
                "--device cuda:" + std::to_string(index) + ": the machine has " +
                    std::to_string(count) + " CUDA devices" +
                    (count > 0 ? ", legal: cuda:0 to cuda:" + std::to_string(count - 1)
                               : ": " + cuda_absence()));
  return Stream::of_queue({Device::Kind::kCuda, static_cast<int8_t>(index)},
                          std::make_shared<CudaQueue>(index), cuda_ops(), threads, determinism);
}

}  // namespace weft
