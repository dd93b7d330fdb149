// Ten thousand jobs through one server: after the first half its memory, files and threads stay
// what they were.
#include <gtest/gtest.h>
#include <malloc.h>

#include <filesystem>
#include <fstream>

#include "apps/serve/jobs/job_routes.h"
#include "apps/serve/jobs/replicas.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

struct Usage {
  double megabytes = 0;
  std::ptrdiff_t files = 0, threads = 0;
};
Usage usage() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  double total, resident;
  file >> total >> resident;
  const auto count = [](const char* folder) {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  return {.megabytes = resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20),
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

// After the jobs that are over have been forgotten.
Usage settled() {
  std::this_thread::sleep_for(6s);
  return usage();
}

TEST(JobSoak, TenThousandJobsLeaveNothing) {
  constexpr int kJobs = 10'000, kWarm = 5'000, kAtOnce = 50;
  const std::string folder = testing::TempDir() + "weft_soak_" + std::to_string(getpid());
  fs::create_directories(folder);
  {
    Metrics metrics(server_metrics());
    ReplicaMetrics job_metrics(metrics);
    Service service({.store = folder + "/jobs.sqlite",
                     .limits = {.kept_seconds = 2},
                     .ended = [&](const StoredJob& job) { job_metrics.ended(job); }});
    int number = 0;
    ServerSettings settings;
    settings.routes = job_routes(service, {.read =
                                               [&](const SentJob&) {
                                                 return NewJob{.id = std::to_string(number++),
                                                               .program = "p",
                                                               .request = "{}",
                                                               .resolved = R"({"num_frames": 5})",
                                                               .output = "x"};
                                               },
                                           .remove_files = [](const NewJob&) {},
                                           .draining = [] { return false; }});
    RunningServer running(std::move(settings));
    const std::vector<DrawJob> draws(2, draw_tiny);
    std::optional<Replicas> replicas(std::in_place, service, job_metrics, "p", draws);
    Usage before, after;
    RawClient client = running.connect();
    for (int sent = 0; sent < kJobs; sent += kAtOnce) {
      for (int i = sent; i < sent + kAtOnce; ++i) {
        ASSERT_EQ(client.ask(post("/v1/jobs", "{}")).status, 202);
        if (i % 5 == 0) client.ask(post("/v1/jobs/" + std::to_string(i) + "/cancel", ""));
      }
      const auto is_busy = [&] {
        const std::vector<int64_t> counts = service.store().counts();
        return counts[0] + counts[1] > 0;
      };
      while (is_busy()) std::this_thread::sleep_for(1ms);
      if (sent + kAtOnce == kWarm) before = settled();
    }
    after = settled();
    std::printf("%.1f MiB, %td files, %td threads after %d jobs; %.1f MiB, %td, %td after %d\n",
                before.megabytes, before.files, before.threads, kWarm, after.megabytes, after.files,
                after.threads, kJobs);
    EXPECT_LE(after.megabytes, before.megabytes * 1.01);
    EXPECT_LE(after.files, before.files);
    EXPECT_LE(after.threads, before.threads);
    EXPECT_EQ(number, kJobs);
    service.drain();
    replicas.reset();
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weft
