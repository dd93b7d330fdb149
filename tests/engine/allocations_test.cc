// A denoise step allocates only small arguments of calls (of a vendor's call, lists of segments),
// and frees all of them: tensors come from the arena and from buffers that the first step made.
// This is a separate binary because it replaces malloc.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>

#include "engine/generation/generator.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

// Counts the heap requests of all threads while `watching` is set.
std::atomic<bool> watching{false};
std::atomic<int64_t> calls{0}, largest{0}, live{0};

void* noted(void* data, size_t bytes) {
  if (!watching.load(std::memory_order_relaxed) || !data) return data;
  ++calls;
  live += static_cast<int64_t>(malloc_usable_size(data));
  int64_t before = largest;
  const auto asked = static_cast<int64_t>(bytes);
  while (before < asked && !largest.compare_exchange_weak(before, asked)) {
  }
  return data;
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) { return noted(__libc_malloc(bytes), bytes); }
void* calloc(size_t count, size_t bytes) {
  return noted(__libc_calloc(count, bytes), count * bytes);
}
void* realloc(void* old, size_t bytes) {
  if (old && watching) live -= static_cast<int64_t>(malloc_usable_size(old));
  return noted(__libc_realloc(old, bytes), bytes);
}
void* memalign(size_t align, size_t bytes) { return noted(__libc_memalign(align, bytes), bytes); }
void* aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }
int posix_memalign(void** out, size_t align, size_t bytes) {
  *out = memalign(align, bytes);
  return *out ? 0 : ENOMEM;
}
void free(void* data) {
  if (data && watching) live -= static_cast<int64_t>(malloc_usable_size(data));
  __libc_free(data);
}
}

namespace weft {
namespace {

// The arguments of one call may take this many bytes (728 were seen). The rows of the pocket
// model's step are much larger.
constexpr int64_t kSmall = 1024;

// Watches from the end of the first step to the end of the last but one.
struct Watch final : ProgressListener {
  int begin = 2, end = 5;
  int64_t steps_calls = 0;
  void progress(const Progress& p) override {
    if (p.stage != "denoise") return;
    if (p.step == begin) {
      calls = largest = live = 0;
      watching = true;
    }
    if (p.step == end) {
      watching = false;
      steps_calls = calls / (end - begin);
    }
  }
};

class Allocations : public testing::TestWithParam<std::tuple<DType, int, Determinism>> {};

TEST_P(Allocations, AStepTakesNoMemory) {
  GeneratorOptions options;
  options.dtype = std::get<0>(GetParam());
  options.threads = std::get<1>(GetParam());
  options.determinism = std::get<2>(GetParam());
  Generator generator("models/pocket", options);
  Request request;
  request.prompt = "a big red ball, moving left";
  request.frames = 9;
  request.steps = 6;
  Watch watch;
  RunOptions run;
  run.listener = &watch;
  generator.run(generator.resolve(request), nullptr, run);
  std::printf("%lld calls in a step, the largest of %lld bytes, %lld bytes kept\n",
              static_cast<long long>(watch.steps_calls), static_cast<long long>(largest.load()),
              static_cast<long long>(live.load()));
  EXPECT_GT(watch.steps_calls, 0);  // proves that the hooks work
  EXPECT_LE(largest, kSmall);
  EXPECT_EQ(live, 0);
}

INSTANTIATE_TEST_SUITE_P(, Allocations,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(1, 2),
                                          testing::Values(Determinism::kFast, Determinism::kFixed)),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == Determinism::kFixed ? "_fixed" : "");
                         });

}  // namespace
}  // namespace weft
