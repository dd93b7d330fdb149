#pragma once
// The Arena is the step's workspace: a bump allocator over one reserved address range. Nothing else
// allocates in the loop. Scopes nest; the high-water mark is reported, and the memory plan accounts
// for it.
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>

#include "kernels/device_memory.h"
#include "kernels/tensor.h"

namespace weft {

class Arena {
 public:
  // The constructor only reserves addresses. The host's pages are taken as they are first touched;
  // a device's memory is taken when it is first allocated and kept until trim(). Exceeding `limit`
  // (in bytes) throws Error(kMemory) with both numbers. On a device, only one stream's work may use
  // the arena at a time.
  explicit Arena(size_t limit = size_t{256} << 30, Device device = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The view is contiguous and 64-byte aligned; its contents are undefined.
  TensorView alloc(DType dtype, std::span<const int64_t> shape);
  TensorView alloc(DType dtype, std::initializer_list<int64_t> shape) {
    return alloc(dtype, std::span<const int64_t>(shape.begin(), shape.size()));
  }

  Device device() const { return device_; }
  size_t used() const { return used_; }
  size_t high_water() const { return high_water_; }
  void reset_high_water() { high_water_ = used_; }
  void trim();  // gives unused pages above used() back to the system

  // Everything allocated inside a scope is released at its end.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.release(mark_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  void release(size_t mark);

  Device device_;
  std::unique_ptr<DeviceRange> range_;  // only where the arena is on a device
  char* base_ = nullptr;
  size_t limit_ = 0;
  size_t used_ = 0;
  size_t high_water_ = 0;
};

// Returns the bytes an Arena takes for one allocation; memory plans use it.
size_t arena_bytes(DType dtype, std::initializer_list<int64_t> shape);

}  // namespace weft
