#include "kernels/tensor.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/device_memory.h"

namespace weft {

TensorView::TensorView(void* data, DType dtype, std::span<const int64_t> shape, Device device)
    : data(data), dtype(dtype), device(device), rank(static_cast<int>(shape.size())) {
  CHECK(rank <= kMaxRank, "rank", rank);
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    CHECK(shape[i] >= 0, "extent", shape[i]);
    extent[i] = shape[i];
    stride[i] = step;
    step *= shape[i];
  }
}

int64_t TensorView::count() const {
  int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= extent[i];
  return n;
}

bool TensorView::contiguous() const {
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (extent[i] != 1 && stride[i] != step) return false;
    step *= extent[i];
  }
  return true;
}

bool TensorView::rows_collapse() const {
  if (rank == 0) return false;
  if (extent[rank - 1] != 1 && stride[rank - 1] != 1) return false;
  int64_t step = -1;
  for (int i = rank - 2; i >= 0; --i) {
    if (extent[i] == 1) continue;
    if (step >= 0 && stride[i] != step) return false;
    step = stride[i] * extent[i];
  }
  return true;
}

int64_t TensorView::rows() const {
  int64_t n = 1;
  for (int i = 0; i + 1 < rank; ++i) n *= extent[i];
  return n;
}

int64_t TensorView::row_stride() const {
  DCHECK(rows_collapse(), to_string_shape());
  for (int i = rank - 2; i >= 0; --i)
    if (extent[i] != 1) return stride[i];
  return rank > 0 ? extent[rank - 1] : 0;
}

TensorView TensorView::slice(int dim, int64_t begin, int64_t count) const {
  if (dim < 0) dim += rank;
  CHECK(dim >= 0 && dim < rank && begin >= 0 && count >= 0 && begin + count <= extent[dim], "dim",
        dim, "begin", begin, "count", count, "of", to_string_shape());
  TensorView out = *this;
  out.data = static_cast<char*>(data) + begin * stride[dim] * static_cast<int64_t>(size_of(dtype));
  out.extent[dim] = count;
  return out;
}

TensorView TensorView::select(int dim, int64_t index) const {
  if (dim < 0) dim += rank;
  TensorView out = slice(dim, index, 1);
  for (int i = dim; i + 1 < rank; ++i) {
    out.extent[i] = out.extent[i + 1];
    out.stride[i] = out.stride[i + 1];
  }
  --out.rank;
  return out;
}

TensorView TensorView::reshape(std::initializer_list<int64_t> shape) const {
  CHECK(contiguous(), to_string_shape());
  TensorView out(data, dtype, shape, device);
  CHECK(out.count() == count(), out.to_string_shape(), "from", to_string_shape());
  return out;
}

TensorView TensorView::permute(std::initializer_list<int> order) const {
  CHECK(static_cast<int>(order.size()) == rank, "order of", order.size(), "for", to_string_shape());
  TensorView out = *this;
  int i = 0;
  unsigned seen = 0;
  for (int from : order) {
    CHECK(from >= 0 && from < rank && !(seen >> from & 1u), "dim", from);
    seen |= 1u << from;
    out.extent[i] = extent[from];
    out.stride[i] = stride[from];
    ++i;
  }
  return out;
}

std::string TensorView::to_string_shape() const {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(extent[i]);
  return text + "] " + std::string(to_string(dtype));
}

namespace {
struct Counter {  // no behaviour depends on these counters
  std::atomic<size_t> live{0}, peak{0};
};
constexpr int kRealKinds = 2;
Counter g_counters[kRealKinds];  // indexed by Device::Kind
thread_local constinit Counter t_counters[2];
Counter& counter(Device::Kind kind) {
  const int index = static_cast<int>(kind);
  return index < kRealKinds ? g_counters[index] : t_counters[index - kRealKinds];
}

// Returns addresses that no other measured tensor of the thread has. They are never read.
void* measured_address(size_t bytes) {
  thread_local constinit uintptr_t next = uintptr_t{1} << 45;
  return reinterpret_cast<void*>(std::exchange(next, next + bytes));
}

// Large blocks come from mmap, so that freed weights return to the system at once and fresh pages
// are zero without a write.
constexpr size_t kMapThreshold = size_t{1} << 20;
constexpr size_t kHugePage = size_t{2} << 20;

// Maps pages from a 2 MiB boundary on, so that every 2 MiB can be one huge page: reading weights
// from small pages takes a third longer.
void* map_pages(size_t bytes) {
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* whole =
      mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  if (slack == 0) return whole;
  char* begin = static_cast<char*>(whole);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  constexpr size_t kPage = 4096;
  const size_t kept = (bytes + kPage - 1) / kPage * kPage;
  if (before > 0) munmap(begin, before);
  if (bytes + slack > before + kept) munmap(begin + before + kept, bytes + slack - before - kept);
  // One page fault per 2 MiB instead of 512: page faults are most of the cost of filling fresh
  // memory at load.
  madvise(begin + before, bytes, MADV_HUGEPAGE);
  return begin + before;
}
}  // namespace

size_t tensor_bytes_live(Device::Kind kind) { return counter(kind).live; }
size_t tensor_bytes_peak(Device::Kind kind) { return counter(kind).peak; }
void reset_tensor_bytes_peak(Device::Kind kind) { counter(kind).peak = counter(kind).live.load(); }

Tensor::Tensor(DType dtype, std::span<const int64_t> shape, Device device) {
  view_ = TensorView(nullptr, dtype, shape, device);
  // The extra bytes make the pointer non-null and let vectors read past the end.
  const size_t bytes = (view_.bytes() + 63) / 64 * 64 + 64;
  void* data = nullptr;
  if (device.measured()) {
    data = measured_address(bytes);
  } else if (device.kind != Device::Kind::kCpu) {
    data = device_malloc(device, bytes);
  } else if (bytes >= kMapThreshold) {
    data = map_pages(bytes);
  } else {
    data = std::aligned_alloc(64, bytes);
    if (data) std::memset(data, 0, bytes);
  }
  if (!data)
    throw Error(ErrorKind::kMemory, "out of memory: a tensor " + view_.to_string_shape() +
                                        " needs " + format_bytes(bytes));
  memory_ = std::unique_ptr<void, Free>(data, Free{bytes, device});
  view_.data = data;
  Counter& count = counter(device.kind);
  const size_t live = count.live += bytes;
  size_t peak = count.peak;
  while (live > peak && !count.peak.compare_exchange_weak(peak, live)) {
  }
}

std::string format_bytes(uint64_t bytes) {
  const bool large = bytes >= uint64_t{1} << 30;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s",
                static_cast<double>(bytes) / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
  return text;
}

void Tensor::Free::operator()(void* data) const {
  counter(device.kind).live -= bytes;
  if (device.measured()) return;
  if (device.kind != Device::Kind::kCpu)
    device_free(device, data, bytes);
  else if (bytes >= kMapThreshold)
    munmap(data, bytes);
  else
    std::free(data);
}

}  // namespace weft
