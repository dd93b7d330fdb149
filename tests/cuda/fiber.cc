#include "tests/cuda/fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

// Sanitizers must be told about fibers; without a sanitizer these functions are null (LLVM's
// sanitizer/common_interface_defs.h, tsan_interface.h).
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** kept, const void* bottom, size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* kept, const void** bottom, size_t* bytes);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* at, size_t bytes);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}

namespace weft::emulated {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

namespace {
constexpr size_t kStack = 128 << 10, kCacheLine = 64, kStackPage = 4096;
}

void make_fiber(Fiber& fiber, FiberMain main) {
  void* at = mmap(nullptr, kStack + 2 * kStackPage, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (at == MAP_FAILED) {
    std::perror("emulated thread's stack");
    std::abort();
  }
  mprotect(at, kStackPage, PROT_NONE);
  // The stacks end at different lines of a page: lines at the same place of many pages would push
  // each other out of the cache, of which every switch needs two or three.
  static size_t made = 0;
  const size_t colour = made++ * 5 % (kStackPage / kCacheLine) * kCacheLine;
  fiber.stack = static_cast<char*>(at) + kStackPage + kStack + colour;
  begin_anew(fiber, main);
}

void begin_anew(Fiber& fiber, FiberMain main) {
  fiber.context = make_fcontext(fiber.stack, kStack, main);
  fiber.bottom = fiber.stack - kStack;
  fiber.bytes = kStack;
  fiber.kept = nullptr;
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fiber.bottom, kStack);
  if (!__tsan_create_fiber) return;
  if (fiber.sanitized) __tsan_destroy_fiber(fiber.sanitized);
  fiber.sanitized = __tsan_create_fiber(0);
}

void jump(Fiber& from, Fiber& to) {
  if (__sanitizer_start_switch_fiber)
    __sanitizer_start_switch_fiber(&from.kept, to.bottom, to.bytes);
  if (__tsan_get_current_fiber && !from.stack) from.sanitized = __tsan_get_current_fiber();
  if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to.sanitized, 0);
  arrived(jump_fcontext(to.context, &from), from);
}

void arrived(transfer_t from, Fiber& self) {
  auto& before = *static_cast<Fiber*>(from.data);
  before.context = from.fctx;
  const void* bottom = nullptr;
  size_t bytes = 0;
  if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(self.kept, &bottom, &bytes);
  if (before.stack) return;
  before.bottom = bottom;
  before.bytes = bytes;
}

}  // namespace weft::emulated
