// Many jobs through one server: after the first half its memory, files and threads stay what they
// were. The blocks that are live are counted exactly. SQLite's are left out: they are its page
// caches, which each statement fills up to their limit. Resident memory has both and what the
// allocator keeps.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>

#include "apps/serve/jobs/job_routes.h"
#include "apps/serve/jobs/replicas.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

struct Usage {
  double resident_mib = 0;
  double live_kib = 0;  // blocks that were allocated and not freed, without SQLite's
  double sqlite_kib = 0;
  std::ptrdiff_t files = 0, threads = 0;
};
Usage usage() {
  constexpr double kKiB = 1024;
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  double total, resident;
  file >> total >> resident;
  const auto count = [](const char* folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  const struct mallinfo2 heap = mallinfo2();
  const auto sqlite = static_cast<double>(sqlite3_memory_used());
  return {.resident_mib = resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (kKiB * kKiB),
          .live_kib = (static_cast<double>(heap.uordblks + heap.hblkhd) - sqlite) / kKiB,
          .sqlite_kib = sqlite / kKiB,
          .files = count("/proc/self/fd"),
          .threads = count("/proc/self/task")};
}

// One in twenty fails; others are done at once.
std::string draw_tiny(const StoredJob& job, ProgressListener& listener,
                      const std::atomic<bool>& stop) {
  for (int step = 0; step < 4; ++step) {
    Progress progress;
    progress.stage = "denoise";
    progress.step = step;
    progress.total = 4;
    listener.progress(progress);
    if (stop) throw Error(ErrorKind::kStopped, "stopped");
  }
  if (std::stoi(job.job.id) % 20 == 7) throw Error(ErrorKind::kNonFinite, "not finite");
  return R"({"path": "x", "content_type": "video/mp4", "sha256": "s", "framehash": "f", "bytes": 1,
             "frames": 1})";
}

std::string new_folder() {
  const std::string folder = testing::TempDir() + "weft_soak_" + std::to_string(getpid());
  fs::create_directories(folder);
  return folder;
}

class JobSoak : public testing::Test {
 protected:
  ~JobSoak() override { fs::remove_all(folder_); }

  std::vector<Route> routes() {
    return job_routes(service_, {.read =
                                     [this](const SentJob&) {
                                       return NewJob{.id = std::to_string(number_++),
                                                     .program = "p",
                                                     .request = "{}",
                                                     .resolved = R"({"num_frames": 5})",
                                                     .output = "x"};
                                     },
                                 .remove_files = [](const NewJob&) {},
                                 .draining = [] { return false; }});
  }

  void draw(RawClient& client, int jobs) {
    constexpr int kAtOnce = 50;
    for (int sent = 0; sent < jobs; ++sent) {
      const std::string id = std::to_string(number_);
      ASSERT_EQ(client.ask(post("/v1/jobs", "{}")).status, 202);
      if (sent % 5 == 0) client.ask(post("/v1/jobs/" + id + "/cancel", ""));
      if (sent % kAtOnce == kAtOnce - 1) wait([this] { return active() == 0; });
    }
  }
  int64_t active() {
    const std::vector<int64_t> counts = service_.store().counts();
    return counts[static_cast<size_t>(JobState::kQueued)] +
           counts[static_cast<size_t>(JobState::kRunning)];
  }
  template <class Condition>
  void wait(Condition&& condition) {
    while (!condition()) std::this_thread::sleep_for(1ms);
  }
  // After all jobs have been forgotten, and threads that hold one have let it go.
  Usage settled() {
    wait([this] { return service_.store().list(1, "")->jobs.empty(); });
    std::this_thread::sleep_for(100ms);
    return usage();
  }

  // Draws `jobs` jobs, and again as many, and returns the usage after either.
  std::pair<Usage, Usage> soak(int jobs) {
    ServerSettings settings;
    settings.routes = routes();
    RunningServer running(std::move(settings));
    const std::vector<DrawJob> draws(2, draw_tiny);
    std::optional<Replicas> replicas(std::in_place, service_, job_metrics_, "p", draws);
    RawClient client = running.connect();
    draw(client, jobs);
    const Usage before = settled();
    draw(client, jobs);
    const Usage after = settled();
    service_.drain();
    replicas.reset();
    for (const Usage& shown : {before, after})
      std::printf("%.1f MiB resident, %.1f KiB live, SQLite's %.1f KiB, %td files, %td threads\n",
                  shown.resident_mib, shown.live_kib, shown.sqlite_kib, shown.files, shown.threads);
    EXPECT_EQ(number_, 2 * jobs);
    EXPECT_LE(after.live_kib, before.live_kib * 1.01);
    EXPECT_LE(after.files, before.files);
    EXPECT_LE(after.threads, before.threads);
    return {before, after};
  }

  const std::string folder_ = new_folder();
  std::atomic<int> number_{0};
  Metrics metrics_{server_metrics()};
  ReplicaMetrics job_metrics_{metrics_};
  Service service_{{.store = folder_ + "/jobs.sqlite",
                    .limits = {.kept_seconds = 0.5},
                    .ended = [this](const StoredJob& job) { job_metrics_.ended(job); }}};
};

TEST_F(JobSoak, SixHundredJobsLeaveNothing) { soak(300); }

TEST_F(JobSoak, TenThousandJobsLeaveNothing) {
  const auto [before, after] = soak(5'000);
  EXPECT_LE(after.resident_mib, before.resident_mib * 1.01);
}

}  // namespace
}  // namespace weft
