#include "kernels/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace weft {

namespace {
constexpr size_t kAlign = 64;
size_t taken(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign + kAlign; }
}  // namespace

Arena::Arena(size_t limit, Device device) : device_(device), limit_(limit) {
  if (device.measured()) {
    base_ = reinterpret_cast<char*>(uintptr_t{1} << 46);  // addresses that are never read
    return;
  }
  if (device.kind != Device::Kind::kCpu) {
    range_ = std::make_unique<DeviceRange>(device, limit);
    base_ = range_->base();
    return;
  }
  void* data = mmap(nullptr, limit_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ErrorKind::kMemory, "cannot reserve " + std::to_string(limit_) +
                                        " bytes of address space for an arena");
  base_ = static_cast<char*>(data);
}

Arena::~Arena() {
  if (base_ && !range_ && !device_.measured()) munmap(base_, limit_);
}

TensorView Arena::alloc(DType dtype, std::span<const int64_t> shape) {
  TensorView view(nullptr, dtype, shape, device_);
  const size_t bytes = taken(view.bytes());
  if (bytes > limit_ - used_)
    throw Error(ErrorKind::kMemory, "the workspace needs " + std::to_string(used_ + bytes) +
                                        " bytes, its limit is " + std::to_string(limit_));
  if (range_) range_->commit(used_ + bytes);
  view.data = base_ + used_;
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return view;
}

size_t arena_bytes(DType dtype, std::initializer_list<int64_t> shape) {
  size_t bytes = size_of(dtype);
  for (int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return taken(bytes);
}

void Arena::trim() {
  if (device_.measured()) return;
  if (range_) return range_->trim(used_);
  const size_t page = 4096, from = (used_ + page - 1) / page * page;
  if (from < high_water_)
    madvise(base_ + from, std::min(high_water_ + page, limit_) - from, MADV_DONTNEED);
}

void Arena::release(size_t mark) {
#ifndef NDEBUG
  if (!range_ && !device_.measured())
    // These bytes are NaN in every float format, so that stale reads show.
    std::memset(base_ + mark, 0xff, used_ - mark);
#endif
  used_ = mark;
}

}  // namespace weft
