// An allocation that fails anywhere in a job ends only that job.
#include <new>

#include "io/weights/tensor_file.h"
#include "tests/engine/small_job.h"
#include "tests/faults/inject.h"
#include "tests/io/io_testing.h"

namespace weft {
namespace {

using test::AllocationFault;
using test::TempDir;

struct Job {
  explicit Job(int threads) {
    options.threads = threads;
    options.determinism = Determinism::kFixed;
    request.frames = 5;
  }
  std::string run(const TempDir& dir) const {
    Generator generator(test::kModel, options);
    VideoSettings settings;
    settings.width = settings.height = 32;
    const auto sink = make_sink(dir / "a.png/", settings, Overwrite::kReplace);
    return generator.run(request, sink.get()).framehash;
  }
  GeneratorOptions options;
  Request request = test::job();
};

// Makes the k-th allocation fail, for every `stride`-th k. The next job gives the frames of the
// first.
void expect_clean_failures(int threads, int64_t stride) {
  const Job job(threads);
  TempDir dir;
  const std::string hash = job.run(dir);
  int64_t total = 0;
  {
    const AllocationFault count(0);
    EXPECT_EQ(job.run(dir), hash);
    total = count.seen();
  }
  EXPECT_GT(total, 200);
  int failed = 0;
  for (int64_t k = 1; k <= total; k += stride) {
    SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(total));
    TempDir folder;
    try {
      const AllocationFault fault(k);
      EXPECT_EQ(job.run(folder), hash);  // a job may do without some allocations: a buffer, a hint
    } catch (const std::bad_alloc&) {
      ++failed;
      EXPECT_EQ(folder.entries(), 0u);
    } catch (const Error& error) {
      ++failed;
      EXPECT_EQ(folder.entries(), 0u);
      EXPECT_FALSE(std::string(error.what()).empty());
    }
    if (k % 40 == 1) {
      EXPECT_EQ(job.run(folder), hash);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failed, total / stride / 2);
  EXPECT_EQ(job.run(dir), hash);
}

TEST(Allocations, EveryFailureIsClean) { expect_clean_failures(1, 1); }
TEST(Allocations, EveryFailureIsCleanWithTwoThreads) { expect_clean_failures(2, 3); }

}  // namespace
}  // namespace weft
