#include "kernels/arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/error_of.h"

namespace weft::test {
namespace {

TEST(Arena, ScopesReleaseAndTheHighWaterMarkStays) {
  Arena arena(size_t{1} << 24);
  const TensorView kept = arena.alloc(DType::kF32, {10});
  const size_t used = arena.used();
  {
    Arena::Scope scope(arena);
    const TensorView a = arena.alloc(DType::kBF16, {100, 3});
    {
      Arena::Scope inner(arena);
      const TensorView b = arena.alloc(DType::kF32, {1});
      EXPECT_GE(static_cast<char*>(b.data), static_cast<char*>(a.data) + a.bytes());
    }
    const TensorView c = arena.alloc(DType::kF32, {1000});
    for (const TensorView& view : {kept, a, c}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 64, 0u);
      EXPECT_TRUE(view.contiguous());
      std::memset(view.data, 1, view.bytes());
    }
  }
  EXPECT_EQ(arena.used(), used);
  EXPECT_GE(arena.high_water(), used + 100 * 3 * 2 + 1000 * 4);
  arena.reset_high_water();
  EXPECT_EQ(arena.high_water(), used);
  arena.trim();
}

TEST(Arena, ReusesTheSameMemory) {
  Arena arena(size_t{1} << 20);
  void* first;
  {
    Arena::Scope scope(arena);
    first = arena.alloc(DType::kF32, {64}).data;
  }
  EXPECT_EQ(arena.alloc(DType::kF32, {8}).data, first);
}

TEST(Arena, BeyondItsLimitIsAMemoryErrorWithBothNumbers) {
  Arena arena(4096);
  arena.alloc(DType::kF32, {100});
  expect_error(ErrorKind::kMemory, "4096", [&] { arena.alloc(DType::kF32, {1000}); });
  arena.alloc(DType::kF32, {10});  // still usable
}

TEST(Arena, EmptyTensorsHaveAnAddress) {
  Arena arena(4096);
  EXPECT_TRUE(arena.alloc(DType::kF32, {0, 5}));
}

}  // namespace
}  // namespace weft::test
