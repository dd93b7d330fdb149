// device_memory.h on CUDA. Ranges are mapped piece by piece (CUDA's virtual memory management).
#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/cuda/message_queues.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/reasons.h"
#include "kernels/device_memory.h"
#include "kernels/device_plan.h"

namespace weft {

namespace {

// A function of the driver, loaded through the runtime, so that nothing links libcuda.
template <class F>
F driver(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  WEFT_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || !function)
    throw Error(ErrorKind::kInternal, std::string("the CUDA driver has no ") + name);
  return reinterpret_cast<F>(function);
}
#define WEFT_DRIVER(name) driver<decltype(&name)>(#name)

void check_driver(CUresult status, const char* call, size_t bytes) {
  if (status == CUDA_SUCCESS) return;
  throw Error(status == CUDA_ERROR_OUT_OF_MEMORY ? ErrorKind::kMemory : ErrorKind::kInternal,
              std::string(call) + " of " + std::to_string(bytes) + " bytes: CUDA error " +
                  std::to_string(status));
}

std::string out_of_memory(Device device, size_t wanted) {
  return shortage_on(device.index, format_bytes(wanted) + " requested");
}

// The device itself, and the devices that can reach its memory: messages are copied by either side.
std::vector<CUmemAccessDesc> readers(int index) {
  int count = 0;
  WEFT_CUDA_CHECK(cudaGetDeviceCount(&count));
  std::vector<CUmemAccessDesc> all;
  for (int other = 0; other < count; ++other) {
    int can = other == index;
    if (!can) WEFT_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, other, index));
    if (can)
      all.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, {other}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  return all;
}

// True where network cards can be given access to mapped memory that asks for it. Memory of
// cudaMalloc has it unasked.
bool maps_for_network_cards(int index) {
  int maps = 0;
  return WEFT_DRIVER(cuDeviceGetAttribute)(
             &maps, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, index) ==
             CUDA_SUCCESS &&
         maps;
}

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct Counter {  // no behaviour depends on these counters
  std::atomic<size_t> live{0}, peak{0};
};
Counter& counter(int index) {
  static std::array<Counter, 128> counters;
  return counters[index];
}

constexpr size_t kAlign = 256;  // cudaMalloc's alignment

// The stream on which fresh memory becomes zero. The default stream and a wait for the whole device
// would invalidate what other threads record meanwhile (device_graph.h).
cudaStream_t zeroing_stream(int index) {
  static std::mutex mutex;
  static std::array<cudaStream_t, 128> streams;
  const std::lock_guard lock(mutex);
  if (!streams[index])
    WEFT_CUDA_CHECK(cudaStreamCreateWithFlags(&streams[index], cudaStreamNonBlocking));
  return streams[index];
}

void count_taken(int index, size_t bytes) {
  Counter& count = counter(index);
  const size_t live = count.live += bytes;
  size_t peak = count.peak;
  while (peak < live && !count.peak.compare_exchange_weak(peak, live)) {
  }
}

// Memory of a device that was given back while messages were under way, by its size. cudaFree would
// wait for them.
struct GivenBlock {
  void* data;
  ComputingSoFar users;
};
struct GivenBack {
  std::mutex mutex;
  std::multimap<size_t, GivenBlock> blocks;
};
GivenBack& given_back(int index) {
  static auto* all = new std::array<GivenBack, 128>;  // static tensors outlive what is not leaked
  return (*all)[index];
}

void free_block(int index, void* data, size_t bytes) {
  cudaFree(data);
  counter(index).live -= rounded(bytes, kAlign);
}

void free_blocks(int index) {
  GivenBack& back = given_back(index);
  for (const auto& [bytes, block] : back.blocks) free_block(index, block.data, bytes);
  back.blocks.clear();
}

// A block of this size that was given back and that nothing uses any more; null where there is
// none.
void* taken_back(int index, size_t bytes) {
  GivenBack& back = given_back(index);
  const std::lock_guard lock(back.mutex);
  if (!back.blocks.empty() && !messages_wait(index)) free_blocks(index);
  const auto [first, last] = back.blocks.equal_range(bytes);
  const auto free =
      std::find_if(first, last, [](auto& entry) { return entry.second.users.done(); });
  if (free == last) return nullptr;
  void* data = free->second.data;
  back.blocks.erase(free);
  return data;
}

void* fresh_block(Device device, size_t bytes) {
  void* data = nullptr;
  cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    GivenBack& back = given_back(device.index);
    const std::lock_guard lock(back.mutex);
    if (!back.blocks.empty()) {
      cudaGetLastError();
      free_blocks(device.index);
      status = cudaMalloc(&data, bytes);
    }
  }
  if (status == cudaErrorMemoryAllocation)
    throw Error(ErrorKind::kMemory, out_of_memory(device, bytes));
  WEFT_CUDA_CHECK(status);
  count_taken(device.index, rounded(bytes, kAlign));
  return data;
}

}  // namespace

void* device_malloc(Device device, size_t bytes) {
  const CudaDeviceScope scope(device.index);
  void* data = taken_back(device.index, bytes);
  if (!data) data = fresh_block(device, bytes);
  const cudaStream_t stream = zeroing_stream(device.index);
  WEFT_CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, stream));
  WEFT_CUDA_CHECK(cudaStreamSynchronize(stream));
  return data;
}

void device_free(Device device, void* data, size_t bytes) {
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device.index);
  GivenBack& back = given_back(device.index);
  const std::lock_guard lock(back.mutex);
  if (messages_wait(device.index)) {
    back.blocks.emplace(bytes, GivenBlock{data, ComputingSoFar(device.index)});
  } else {
    free_block(device.index, data, bytes);
    free_blocks(device.index);
  }
  cudaSetDevice(before);
}

DeviceUse device_use(Device device) {
  return {counter(device.index).live, counter(device.index).peak};
}

void reset_device_use_peak(Device device) {
  counter(device.index).peak = counter(device.index).live.load();
}

DeviceMemoryInfo device_memory_info(Device device) {
  const CudaDeviceScope scope(device.index);
  DeviceMemoryInfo info;
  WEFT_CUDA_CHECK(cudaMemGetInfo(&info.free, &info.total));
  return info;
}

struct DeviceRange::Pieces {
  std::vector<CUmemGenericAllocationHandle> handles;  // one per kDevicePiece, from the base on
};

DeviceRange::DeviceRange(Device device, size_t limit)
    : device_(device), limit_(rounded(limit, kDevicePiece)), pieces_(std::make_unique<Pieces>()) {
  const CudaDeviceScope scope(device.index);
  WEFT_CUDA_CHECK(cudaFree(nullptr));  // makes the context that the driver's calls need
  CUdeviceptr base = 0;
  check_driver(WEFT_DRIVER(cuMemAddressReserve)(&base, limit_, kDevicePiece, 0, 0),
               "cuMemAddressReserve", limit_);
  base_ = reinterpret_cast<char*>(base);
}

DeviceRange::~DeviceRange() {
  if (!base_) return;
  try {
    trim(0);
    WEFT_DRIVER(cuMemAddressFree)(reinterpret_cast<CUdeviceptr>(base_), limit_);
  } catch (const Error&) {  // the device is gone, and its memory with it
  }
}

void DeviceRange::commit(size_t bytes) {
  if (bytes <= committed_) return;
  if (bytes > limit_)
    throw Error(ErrorKind::kMemory, "a workspace needs " + std::to_string(bytes) +
                                        " bytes, its limit is " + std::to_string(limit_));
  const CudaDeviceScope scope(device_.index);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_.index}};
  properties.allocFlags.gpuDirectRDMACapable = maps_for_network_cards(device_.index);
  const std::vector<CUmemAccessDesc> access = readers(device_.index);
  while (committed_ < bytes) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult status = WEFT_DRIVER(cuMemCreate)(&handle, kDevicePiece, &properties, 0);
    if (status == CUDA_ERROR_OUT_OF_MEMORY)
      throw Error(ErrorKind::kMemory,
                  out_of_memory(device_, rounded(bytes - committed_, kDevicePiece)));
    check_driver(status, "cuMemCreate", kDevicePiece);
    const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(base_ + committed_);
    check_driver(WEFT_DRIVER(cuMemMap)(at, kDevicePiece, 0, handle, 0), "cuMemMap", kDevicePiece);
    check_driver(WEFT_DRIVER(cuMemSetAccess)(at, kDevicePiece, access.data(), access.size()),
                 "cuMemSetAccess", kDevicePiece);
    pieces_->handles.push_back(handle);
    committed_ += kDevicePiece;
    count_taken(device_.index, kDevicePiece);
  }
}

void DeviceRange::trim(size_t bytes) {
  const size_t kept = rounded(bytes, kDevicePiece);
  if (kept >= committed_) return;
  const CudaDeviceScope scope(device_.index);
  wait_for_queues(device_.index);
  while (committed_ > kept) {
    committed_ -= kDevicePiece;
    const CUdeviceptr at = reinterpret_cast<CUdeviceptr>(base_ + committed_);
    check_driver(WEFT_DRIVER(cuMemUnmap)(at, kDevicePiece), "cuMemUnmap", kDevicePiece);
    check_driver(WEFT_DRIVER(cuMemRelease)(pieces_->handles.back()), "cuMemRelease", kDevicePiece);
    pieces_->handles.pop_back();
    counter(device_.index).live -= kDevicePiece;
  }
}

PinnedMemory::PinnedMemory(size_t bytes) : bytes_(bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error(ErrorKind::kMemory, "out of memory: " + std::to_string(bytes) +
                                        " bytes of pinned host memory requested");
  }
  WEFT_CUDA_CHECK(status);
  data_.reset(data);
}

void PinnedMemory::Free::operator()(void* data) const { cudaFreeHost(data); }

struct DeviceEvent::Impl {
  explicit Impl(int index) : index(index) {
    const CudaDeviceScope scope(index);
    WEFT_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  ~Impl() { cudaEventDestroy(event); }
  int index;
  cudaEvent_t event = nullptr;
};

DeviceEvent::DeviceEvent() = default;
DeviceEvent::~DeviceEvent() = default;
DeviceEvent::DeviceEvent(DeviceEvent&&) noexcept = default;
DeviceEvent& DeviceEvent::operator=(DeviceEvent&&) noexcept = default;

void DeviceEvent::record(Stream& stream) {
  if (!stream.queue()) return impl_.reset();
  CudaQueue& queue = cuda_queue(stream);
  if (!impl_ || impl_->index != queue.index()) impl_ = std::make_unique<Impl>(queue.index());
  WEFT_CUDA_CHECK(cudaEventRecord(impl_->event, queue.stream()));
}

void DeviceEvent::wait_on(Stream& stream) {
  if (!impl_) return;
  if (!stream.queue()) return sync();
  WEFT_CUDA_CHECK(cudaStreamWaitEvent(cuda_queue(stream).stream(), impl_->event, 0));
}

void DeviceEvent::sync() {
  if (impl_) WEFT_CUDA_CHECK(cudaEventSynchronize(impl_->event));
}

bool DeviceEvent::done() {
  if (!impl_) return true;
  const cudaError_t status = cudaEventQuery(impl_->event);
  if (status == cudaErrorNotReady) return false;
  WEFT_CUDA_CHECK(status);
  return true;
}

struct DeviceClock::Impl {
  struct Span {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  ~Impl() {
    for (const std::deque<Span>* spans : {&open, &idle})
      for (const Span& span : *spans) {
        cudaEventDestroy(span.begin);
        cudaEventDestroy(span.end);
      }
  }
  std::deque<Span> open, idle;  // open: in the order of their ends
  int index = -1;
  double seconds = 0;
};

DeviceClock::DeviceClock() : impl_(std::make_unique<Impl>()) {}
DeviceClock::~DeviceClock() = default;
DeviceClock::DeviceClock(DeviceClock&&) noexcept = default;
DeviceClock& DeviceClock::operator=(DeviceClock&&) noexcept = default;

void DeviceClock::begin(Stream& stream) {
  if (!stream.queue()) return;
  if (impl_->open.size() >= 64) seconds();  // forgets the pairs that are over
  CudaQueue& queue = cuda_queue(stream);
  CHECK(impl_->index < 0 || impl_->index == queue.index(), "a clock of", impl_->index, "on",
        queue.index());
  impl_->index = queue.index();
  if (impl_->idle.empty()) {
    Impl::Span& made = impl_->idle.emplace_back();
    WEFT_CUDA_CHECK(cudaEventCreate(&made.begin));
    WEFT_CUDA_CHECK(cudaEventCreate(&made.end));
  }
  impl_->open.push_back(impl_->idle.front());
  impl_->idle.pop_front();
  WEFT_CUDA_CHECK(cudaEventRecord(impl_->open.back().begin, queue.stream()));
}

void DeviceClock::end(Stream& stream) {
  if (!stream.queue()) return;
  WEFT_CUDA_CHECK(cudaEventRecord(impl_->open.back().end, cuda_queue(stream).stream()));
}

double DeviceClock::seconds() {
  while (!impl_->open.empty()) {
    const Impl::Span span = impl_->open.front();
    const cudaError_t status = cudaEventQuery(span.end);
    if (status == cudaErrorNotReady) break;
    WEFT_CUDA_CHECK(status);
    float elapsed = 0;
    WEFT_CUDA_CHECK(cudaEventElapsedTime(&elapsed, span.begin, span.end));
    impl_->seconds += elapsed * 1e-3;
    impl_->open.pop_front();
    impl_->idle.push_back(span);
  }
  return impl_->seconds;
}

}  // namespace weft
