#include "kernels/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <new>

namespace weft::cpu {

namespace {

struct Free {
  void operator()(void* data) const { std::free(data); }
};

struct Buffer {
  std::unique_ptr<void, Free> data;
  size_t bytes = 0;
};

}  // namespace

void* thread_scratch_bytes(Scratch slot, size_t bytes) {
  thread_local std::array<Buffer, static_cast<size_t>(Scratch::kCount)> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(slot)];
  if (buffer.bytes < bytes || !buffer.data) {
    const size_t rounded = (bytes + 63) / 64 * 64 + 64;
    buffer.data.reset();
    buffer.data.reset(std::aligned_alloc(64, rounded));
    if (!buffer.data) throw std::bad_alloc();
    buffer.bytes = rounded;
  }
  return buffer.data.get();
}

}  // namespace weft::cpu
