// Processes that take jobs of one file at the same time, half of which are killed: no job is lost,
// none is completed twice, and none stays with a worker that has died.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <thread>

#include "engine/service/sqlite.h"
#include "tests/engine/service/store_testing.h"
#include "tests/support/draw.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 8, kKilled = 4;

StoreLimits race_limits() { return {.queued = 1 << 30, .lease_seconds = 2}; }

// A worker process: its model sleeps, and it writes the jobs that it completed to a file of its
// own.
void work(const std::string& path, int index) {
  const std::string name = "worker " + std::to_string(index);
  FILE* log = std::fopen((path + "." + std::to_string(index)).c_str(), "w");
  JobStore store(path, race_limits());
  for (;;) try {
      const std::optional<Claim> claim = store.claim(name, "model");
      if (!claim) {
        store.tidy();
        if (store.next_claim_ms("model") || store.counts()[size_t(JobState::kRunning)] > 0)
          usleep(20'000);
        else
          break;
        continue;
      }
      usleep(2000);
      if (!store.complete(*claim, "{}", "")) continue;
      std::fprintf(log, "%s\n", claim->stored.job.id.c_str());
      std::fflush(log);
    } catch (const DatabaseError& error) {
      if (!error.locked()) throw;  // one of eight may wait for longer than a lock lasts
    }
}

pid_t fork_worker(const std::string& path, int index) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    work(path, index);
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "worker %d: %s\n", index, error.what());
    _exit(1);
  }
}

// The file of a few jobs is in memory if possible, because every change waits for its disk.
std::string race_file(bool few) {
  if (!few || !std::filesystem::is_directory("/dev/shm")) return new_file("race.db");
  return "/dev/shm/weft_" + std::to_string(getpid()) + "_race.db";
}

// WEFT_CASES is the number of jobs.
TEST(StoreRace, NoJobIsLostDoubledOrStuck) {
  const auto jobs = static_cast<int>(number_of("WEFT_CASES", 400));
  const std::string path = race_file(jobs <= 400);
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  {
    JobStore store(path, race_limits());
    for (int job = 0; job < jobs; ++job) store.submit(job_named(std::to_string(job)));
  }
  const double submitted = seconds();
  std::vector<pid_t> workers;
  for (int index = 0; index < kWorkers; ++index) workers.push_back(fork_worker(path, index));
  JobStore store(path, race_limits());
  const auto completed = [&] { return store.counts()[size_t(JobState::kCompleted)]; };
  for (int index = 0; index < kKilled; ++index) {
    while (completed() < jobs * (index + 1) / (kKilled + 2) && seconds() < submitted + 3600)
      usleep(5000);
    kill(workers[static_cast<size_t>(index)], SIGKILL);
  }
  for (int index = 0; index < kWorkers; ++index) {
    int status = 0;
    waitpid(workers[static_cast<size_t>(index)], &status, 0);
    EXPECT_EQ(WIFSIGNALED(status), index < kKilled) << index;
    EXPECT_EQ(WIFEXITED(status) && WEXITSTATUS(status) == 0, index >= kKilled) << index;
  }
  std::printf("%d jobs: submitted in %.1f s, drawn by %d processes in %.1f s\n", jobs, submitted,
              kWorkers, seconds() - submitted);
  EXPECT_EQ(completed(), jobs) << "lost or stuck";

  std::map<std::string, int> times;
  for (int index = 0; index < kWorkers; ++index) {
    const std::string log = path + "." + std::to_string(index);
    std::ifstream lines(log);
    for (std::string id; std::getline(lines, id);) ++times[id];
    std::filesystem::remove(log);
  }
  for (const auto& [id, count] : times) EXPECT_EQ(count, 1) << id;
  // A killed worker may have completed one job that it did not write down.
  EXPECT_GE(times.size(), size_t(jobs - kKilled));
  Database database(path);
  EXPECT_EQ(run(database,
                "SELECT COUNT(*) FROM attempt GROUP BY job "
                "HAVING SUM(outcome = 'completed') <> 1"),
            std::nullopt)
      << "doubled";
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(path + end);
}

}  // namespace
}  // namespace weft::test
