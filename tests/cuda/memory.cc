// Device memory is a reservation of addresses that only device work may touch. The handler of
// SIGSEGV opens pages when device work touches them, and reports any other access.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/cuda/emulated/cuda.h"
#include "tests/cuda/machine.h"

namespace weft::emulated {

namespace {

constexpr size_t kPage = 4096, kChunk = size_t{256} << 10, kAlign = 256;
constexpr size_t kMostAddresses = size_t{32} << 40;  // or less, if the thread sanitizer leaves less
constexpr size_t kGranularity = size_t{2} << 20;     // as cuMemCreate reports it

struct Handle {
  size_t bytes;
  int device;
  bool mapped, for_network;
};

struct Memory {
  char* base = nullptr;
  size_t addresses = kMostAddresses;
  size_t next = 0;                               // first address never allocated
  std::multimap<size_t, uintptr_t> free_ranges;  // freed reservations, by size
  std::map<uintptr_t, size_t> ranges;            // live reservations
  std::map<uintptr_t, Region> regions;           // mapped memory, by its page_begin
  std::map<uintptr_t, uintptr_t> allocations;  // from cudaMalloc: data and its region's page_begin
  std::map<uint64_t, Handle> handles;
  uint64_t next_handle = 1;
  std::map<uintptr_t, size_t> pinned;
  std::set<uintptr_t> pinned_owned;
  std::vector<size_t> used;  // per device
  size_t total = size_t{8} << 30;
  size_t held = 0;  // by another process, unseen before an allocation fails for it
  bool held_seen = false;
  std::vector<std::pair<uintptr_t, size_t>> open;
};

// The depth of DeviceWork on this thread. It is atomic to order it with the thread's reads of
// device memory, which end in the signal handler.
thread_local std::atomic<int> working = 0;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

void on_fault(int, siginfo_t* info, void*);

Memory& memory() {
  static Memory* made = [] {
    auto* m = new Memory;
    void* at = MAP_FAILED;
    for (; m->addresses > size_t{1} << 30; m->addresses /= 2) {
      at = mmap(nullptr, m->addresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                0);
      if (at != MAP_FAILED) break;
    }
    if (at == MAP_FAILED) {
      std::perror("emulated device memory");
      std::abort();
    }
    m->base = static_cast<char*>(at);
    m->used.resize(64);
    if (const char* bytes = std::getenv("WEFT_EMULATED_BYTES"))
      m->total = std::strtoull(bytes, nullptr, 10);
    if (const char* bytes = std::getenv("WEFT_EMULATED_HELD"))
      m->held = std::strtoull(bytes, nullptr, 10);
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    return m;
  }();
  return *made;
}

bool is_device(const void* data) {
  const Memory& m = memory();
  const auto* at = static_cast<const char*>(data);
  return at >= m.base && at < m.base + m.addresses;
}

Region* region_at(uintptr_t at) {
  auto& regions = memory().regions;
  auto next = regions.upper_bound(at);
  if (next == regions.begin()) return nullptr;
  Region& region = std::prev(next)->second;
  return at < region.page_end ? &region : nullptr;
}

// Opens the chunk at `at`; returns false if there is no memory there.
bool open_chunk(uintptr_t at) {
  Region* region = region_at(at);
  if (!region || !region->accessible) return false;
  const size_t chunk = (at - region->page_begin) / kChunk;
  const uintptr_t begin = region->page_begin + chunk * kChunk;
  const size_t bytes = std::min(kChunk, region->page_end - begin);
  auto* data = reinterpret_cast<char*>(begin);
  if (mprotect(data, bytes, PROT_READ | PROT_WRITE) != 0) return false;
  memory().open.push_back({begin, bytes});
  if (!region->filled[chunk]) {
    region->filled[chunk] = true;
    std::memset(data, 0xff, bytes);
  }
  return true;
}

void close_chunks() {
  auto& open = memory().open;
  std::ranges::sort(open);
  for (size_t i = 0; i < open.size();) {
    size_t end = i + 1;
    uintptr_t at = open[i].first + open[i].second;
    while (end < open.size() && open[end].first == at) at += open[end++].second;
    mprotect(reinterpret_cast<void*>(open[i].first), at - open[i].first, PROT_NONE);
    i = end;
  }
  open.clear();
}

void on_fault(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool device = is_device(info->si_addr);
  if (device && working > 0 && open_chunk(at)) return;
  if (device || beyond_shared(info->si_addr)) {
    std::string text;
    const std::string thread = running_thread();
    if (!device) {
      text = thread + " touched memory behind the block's dynamic shared memory";
    } else if (working > 0) {
      text = (thread.empty() ? "device work" : thread) + " touched device memory that is not there";
      auto next = memory().allocations.upper_bound(at);
      if (next != memory().allocations.begin()) {
        const auto [data, pages] = *std::prev(next);
        const auto region = memory().regions.find(pages);
        if (region != memory().regions.end())
          text += ", " + std::to_string(at - data) + " bytes behind the start of " +
                  std::to_string(region->second.bytes);
      }
    } else {
      text = "host code touched device memory";
    }
    std::fprintf(stderr, "emulator: %s (address %p)\n", text.c_str(), info->si_addr);
  }
  signal(SIGSEGV, SIG_DFL);  // the instruction runs again and crashes
}

Region make_region(uintptr_t begin, size_t page_bytes, size_t bytes, int device) {
  return {.bytes = bytes,
          .device = device,
          .page_begin = begin,
          .page_end = begin + page_bytes,
          .filled = std::vector<bool>((page_bytes + kChunk - 1) / kChunk)};
}

void drop_region(uintptr_t pages) {
  const Region& region = memory().regions.at(pages);
  close_chunks();
  madvise(reinterpret_cast<void*>(pages), region.page_end - pages, MADV_DONTNEED);
  memory().regions.erase(pages);
}

uintptr_t take_addresses(size_t bytes, size_t alignment) {
  Memory& m = memory();
  const auto base = reinterpret_cast<uintptr_t>(m.base);
  const uintptr_t at = rounded(base + m.next, alignment);
  if (at + bytes > base + m.addresses) return 0;
  m.next = at + bytes - base;
  return at;
}

// True if the bytes around an allocation, up to the ends of its pages, are still the NaNs they
// were.
bool margins_intact(uintptr_t data, const Region& region) {
  const DeviceWork work;
  const auto clean = [](uintptr_t from, uintptr_t to) {
    for (; from < to; ++from)
      if (*reinterpret_cast<const unsigned char*>(from) != 0xff) return false;
    return true;
  };
  const size_t first = (data - region.page_begin) / kChunk;
  const size_t last = (data + region.bytes - 1 - region.page_begin) / kChunk;
  return (!region.filled[first] || clean(region.page_begin, data)) &&
         (!region.filled[last] || clean(data + region.bytes, region.page_end));
}

bool take(int device, size_t bytes) {
  Memory& m = memory();
  if (m.used[device] + bytes + m.held > m.total) {
    m.held_seen = true;
    return false;
  }
  m.used[device] += bytes;
  return true;
}

}  // namespace

DeviceWork::DeviceWork() { ++working; }
DeviceWork::~DeviceWork() {
  if (--working == 0) close_chunks();
}

namespace {
thread_local int working_before = 0;
}
HostWork::HostWork() {
  close_chunks();
  working_before = working.exchange(0);
}
HostWork::~HostWork() { working = working_before; }

Where where(const void* data) {
  if (is_device(data)) return Where::kDevice;
  const auto& pinned = memory().pinned;
  auto next = pinned.upper_bound(reinterpret_cast<uintptr_t>(data));
  if (next == pinned.begin()) return Where::kPageable;
  const auto [begin, bytes] = *std::prev(next);
  return reinterpret_cast<uintptr_t>(data) < begin + bytes ? Where::kPinned : Where::kPageable;
}

bool reaches(int device, const void* data) {
  const Region* region = region_at(reinterpret_cast<uintptr_t>(data));
  return !region || region->device == device || region->readers.contains(device) ||
         (!region->handle && machine().peers.contains({device, region->device}));
}

bool reached_by_network(const void* data) {
  const Lock lock(machine().mutex);
  const Region* region = region_at(reinterpret_cast<uintptr_t>(data));
  return region && region->for_network;
}

void set_device_bytes(size_t bytes) {
  const Lock lock(machine().mutex);
  memory().total = bytes;
}

size_t device_bytes_used(int device) {
  const Lock lock(machine().mutex);
  return memory().used[device];
}

}  // namespace weft::emulated

using namespace weft::emulated;  // NOLINT: CUDA's functions are global

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Lock lock(machine().mutex);
  if (const cudaError_t no = forbidden_in_capture()) return told(no);
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  const int device = current_device();
  const size_t own = rounded(bytes, kAlign), pages = rounded(own, kPage);
  if (!take(device, own)) return told(cudaErrorMemoryAllocation);
  const uintptr_t at = take_addresses(pages + kPage, kPage);  // the last page is never opened
  if (!at) return told(cudaErrorMemoryAllocation);
  const uintptr_t start = at + pages - own;
  memory().regions[at] = make_region(at, pages, bytes, device);
  memory().allocations[start] = at;
  *data = reinterpret_cast<void*>(start);
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  const Lock lock(machine().mutex);
  memory();
  if (!data) return cudaSuccess;
  if (const cudaError_t no = forbidden_in_capture()) return told(no);
  auto& allocations = memory().allocations;
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(data));
  if (found == allocations.end()) return told(cudaErrorInvalidValue);
  const Region region = memory().regions.at(found->second);
  await_device(region.device);
  const bool intact = margins_intact(found->first, region);
  drop_region(found->second);
  memory().used[region.device] -= rounded(region.bytes, kAlign);
  allocations.erase(found);
  if (!intact)
    fault(cudaErrorIllegalAddress, "something wrote around an allocation of " +
                                       std::to_string(region.bytes) + " bytes, now freed");
  return told(machine().status);
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Lock lock(machine().mutex);
  *total = memory().total;
  const size_t used = memory().used[current_device()] + (memory().held_seen ? memory().held : 0);
  *free = *total - std::min(used, *total);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  const Lock lock(machine().mutex);
  if (const cudaError_t no = forbidden_in_capture()) return told(no);
  *data = bytes > (size_t{1} << 40) ? nullptr : std::aligned_alloc(kPage, rounded(bytes, kPage));
  if (!*data) return told(cudaErrorMemoryAllocation);
  std::memset(*data, 0xff, bytes);
  memory().pinned[reinterpret_cast<uintptr_t>(*data)] = bytes;
  memory().pinned_owned.insert(reinterpret_cast<uintptr_t>(*data));
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t bytes, unsigned flags) {
  return cudaHostAlloc(data, bytes, flags);
}

cudaError_t cudaFreeHost(void* data) {
  const Lock lock(machine().mutex);
  if (!data) return cudaSuccess;
  if (!memory().pinned_owned.erase(reinterpret_cast<uintptr_t>(data)))
    return told(cudaErrorInvalidValue);
  for (size_t device = 0; device < machine().default_streams.size(); ++device)
    await_device(static_cast<int>(device));
  memory().pinned.erase(reinterpret_cast<uintptr_t>(data));
  std::free(data);
  return told(machine().status);
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  const Lock lock(machine().mutex);
  if (bytes == 0 || where(data) == Where::kDevice) return told(cudaErrorInvalidValue);
  if (where(data) == Where::kPinned) return told(cudaErrorHostMemoryAlreadyRegistered);
  memory().pinned[reinterpret_cast<uintptr_t>(data)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  const Lock lock(machine().mutex);
  if (memory().pinned_owned.contains(reinterpret_cast<uintptr_t>(data)) ||
      !memory().pinned.erase(reinterpret_cast<uintptr_t>(data)))
    return told(cudaErrorHostMemoryNotRegistered);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  const Lock lock(machine().mutex);
  *attributes = {};
  attributes->device = -2;
  void* own = const_cast<void*>(data);
  switch (where(data)) {
    case Where::kPageable:
      break;
    case Where::kPinned:
      attributes->type = cudaMemoryTypeHost;
      attributes->device = 0;
      attributes->devicePointer = attributes->hostPointer = own;
      break;
    case Where::kDevice: {
      const Region* region = region_at(reinterpret_cast<uintptr_t>(data));
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = region ? region->device : 0;
      attributes->devicePointer = own;
      break;
    }
  }
  return cudaSuccess;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)
    return CUDA_ERROR_INVALID_VALUE;
  *value = 1;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* data, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long) {
  const Lock lock(machine().mutex);
  Memory& m = memory();
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  alignment = std::max(alignment, kGranularity);
  uintptr_t at = 0;
  const auto [first, last] = m.free_ranges.equal_range(bytes);
  const auto kept = std::find_if(first, last, [&](auto& r) { return r.second % alignment == 0; });
  if (kept != last) {
    at = kept->second;
    m.free_ranges.erase(kept);
  } else {
    at = take_addresses(bytes + kPage, alignment);
  }
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  m.ranges[at] = bytes;
  *data = at;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr data, size_t bytes) {
  const Lock lock(machine().mutex);
  Memory& m = memory();
  const auto found = m.ranges.find(data);
  if (found == m.ranges.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = m.regions.lower_bound(data);
  if (mapped != m.regions.end() && mapped->first < data + bytes) return CUDA_ERROR_INVALID_VALUE;
  m.free_ranges.insert({bytes, data});
  m.ranges.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long) {
  const Lock lock(machine().mutex);
  if (forbidden_in_capture()) return CUDA_ERROR_NOT_PERMITTED;
  if (bytes == 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  const int device = properties->location.id;
  if (!take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = memory().next_handle++;
  memory().handles[*handle] = {bytes, device, false,
                               properties->allocFlags.gpuDirectRDMACapable != 0};
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const Lock lock(machine().mutex);
  const auto found = memory().handles.find(handle);
  // The driver would wait for the unmapping; no caller here needs that.
  if (found == memory().handles.end() || found->second.mapped) return CUDA_ERROR_INVALID_VALUE;
  memory().used[found->second.device] -= found->second.bytes;
  memory().handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr data, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  const Lock lock(machine().mutex);
  Memory& m = memory();
  const auto found = m.handles.find(handle);
  auto range = m.ranges.upper_bound(data);
  if (found == m.handles.end() || found->second.mapped || offset != 0 ||
      bytes != found->second.bytes || range == m.ranges.begin())
    return CUDA_ERROR_INVALID_VALUE;
  --range;
  if (data + bytes > range->first + range->second) return CUDA_ERROR_INVALID_VALUE;
  const auto next = m.regions.lower_bound(data);
  if (region_at(data) || (next != m.regions.end() && next->first < data + bytes))
    return CUDA_ERROR_INVALID_VALUE;
  Region& region = m.regions[data] = make_region(data, bytes, bytes, found->second.device);
  region.handle = handle;
  region.accessible = false;
  region.for_network = found->second.for_network;
  found->second.mapped = true;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr data, size_t bytes) {
  const Lock lock(machine().mutex);
  if (forbidden_in_capture()) return CUDA_ERROR_NOT_PERMITTED;
  Memory& m = memory();
  while (bytes > 0) {
    const auto region = m.regions.find(data);
    if (region == m.regions.end() || !region->second.handle || region->second.bytes > bytes)
      return CUDA_ERROR_INVALID_VALUE;
    // Unmapping does not wait for the device: work that still uses the memory faults.
    m.handles.at(region->second.handle).mapped = false;
    data += region->second.bytes;
    bytes -= region->second.bytes;
    drop_region(region->first);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr data, size_t bytes, const CUmemAccessDesc* access,
                        size_t count) {
  const Lock lock(machine().mutex);
  for (const uintptr_t end = data + bytes; data < end;) {
    const auto region = memory().regions.find(data);
    if (region == memory().regions.end()) return CUDA_ERROR_INVALID_VALUE;
    region->second.accessible = true;
    for (size_t i = 0; i < count; ++i) region->second.readers.insert(access[i].location.id);
    data += region->second.bytes;
  }
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
#define WEFT_ENTRY(entry) \
  { #entry, reinterpret_cast < void*>(&entry) }
  static const std::map<std::string, void*> entries{WEFT_ENTRY(cuMemAddressReserve),
                                                    WEFT_ENTRY(cuMemAddressFree),
                                                    WEFT_ENTRY(cuMemCreate),
                                                    WEFT_ENTRY(cuMemRelease),
                                                    WEFT_ENTRY(cuMemMap),
                                                    WEFT_ENTRY(cuMemUnmap),
                                                    WEFT_ENTRY(cuMemSetAccess),
                                                    WEFT_ENTRY(cuDeviceGetAttribute)};
  const auto entry = entries.find(name);
  *function = entry == entries.end() ? nullptr : entry->second;
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : told(cudaErrorSymbolNotFound);
}
