// The control plane between real processes: a killed, a stopped and a failing rank end the others
// with one line that names it; a short stop and an orderly end do not.
#include "parallel/bootstrap/control_plane.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// Two pipes stand for MPI's broadcast; the first rank is the test, the others are its children.
class Job {
 public:
  // `silent` never says hello.
  explicit Job(const ControlSettings& settings, int silent = -1) {
    for (int rank = 1; rank < kRanks; ++rank) {
      int pipe_ends[2];
      EXPECT_EQ(pipe(pipe_ends), 0);
      const pid_t child = fork();
      if (child == 0 && rank == silent)
        for (;;) pause();
      if (child == 0) run_child(rank, pipe_ends[0], settings);
      close(pipe_ends[0]);
      writers_.push_back(pipe_ends[1]);
      children_.push_back(child);
    }
    const auto share = [&](const std::string& text) {
      char shared[256] = {};
      std::snprintf(shared, sizeof shared, "%s", text.c_str());
      for (int writer : writers_) EXPECT_EQ(write(writer, shared, sizeof shared), 256);
      return text;
    };
    ControlReports reports;
    reports.last_operation = [] { return std::string("step 7"); };
    reports.warning = [this](const std::string& line) { note(warnings_, line); };
    reports.failure = [this](const std::string& line) { note(failures_, line); };
    plane_ = std::make_unique<ControlPlane>(0, kRanks, "lo", share, reports, settings);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // hellos and first beats
  }
  ~Job() {
    plane_.reset();
    for (pid_t child : children_) {
      if (child == 0) continue;
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
    for (int writer : writers_) close(writer);
  }

  pid_t child(int rank) const { return children_[rank - 1]; }
  ControlPlane& plane() { return *plane_; }
  void leave() { plane_.reset(); }
  std::string failure(int milliseconds) { return first(failures_, milliseconds); }
  std::string warning(int milliseconds) { return first(warnings_, milliseconds); }
  bool ended(int rank) { return waitpid(child(rank), nullptr, WNOHANG) != 0; }
  // The exit code of a child: 7 where it came to the end, 8 where it misjudged the job's clock, 42
  // where it heard a line about rank 2.
  int end_of(int rank) {
    int status = 0;
    waitpid(child(rank), &status, 0);
    children_[rank - 1] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static constexpr int kRanks = 3;
  static constexpr int64_t kClockError = 100'000'000;  // of a machine whose cores are shared
  static int64_t skewed_clock() { return steady_clock_ns() + 1'000'000'000'000'000; }

  [[noreturn]] static void run_child(int rank, int reader, const ControlSettings& settings) {
    ControlReports reports;
    reports.last_operation = [] { return std::string("receive from rank 0 of hidden"); };
    reports.failure = [](const std::string& line) {
      _exit(line.find("rank 2") != std::string::npos ? 42 : 43);
    };
    const auto share = [&](const std::string&) {
      char shared[256] = {};
      if (read(reader, shared, sizeof shared) != 256) _exit(1);
      return std::string(shared);
    };
    ControlSettings own = settings;
    own.clock_ns = skewed_clock;
    auto plane = std::make_unique<ControlPlane>(rank, kRanks, "lo", share, reports, own);
    // The first rank's clock is this machine's; that of the children stands far from it.
    const int64_t before = steady_clock_ns(), job = plane->job_clock_ns(),
                  after = steady_clock_ns();
    if (job < before - kClockError || job > after + kClockError) _exit(8);
    plane->await_all();
    plane.reset();
    _exit(7);
  }

  void note(std::vector<std::string>& lines, const std::string& line) {
    const std::lock_guard guard(lock_);
    lines.push_back(line);
  }
  std::string first(std::vector<std::string>& lines, int milliseconds) {
    for (int waited = 0; waited <= milliseconds; waited += 10) {
      {
        const std::lock_guard guard(lock_);
        if (!lines.empty()) return lines.front();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return "";
  }

  std::vector<int> writers_;
  std::vector<pid_t> children_;
  std::mutex lock_;
  std::vector<std::string> warnings_, failures_;
  std::unique_ptr<ControlPlane> plane_;
};

constexpr ControlSettings kQuick{.beat_s = 0.05, .suspect_s = 0.5, .dead_s = 3, .grace_s = 60};

TEST(ControlPlane, AKilledRankIsNamedToAll) {
  Job job(kQuick);
  kill(job.child(2), SIGKILL);
  const std::string line = job.failure(5000);
  EXPECT_EQ(line, "rank 2 is gone; its last sign was receive from rank 0 of hidden");
  EXPECT_EQ(job.end_of(1), 42);
}

TEST(ControlPlane, AStoppedRankIsSuspectedThenNamedToAll) {
  Job job(kQuick);
  kill(job.child(2), SIGSTOP);
  EXPECT_TRUE(contains(job.warning(5000), "rank 2 has given no sign for"));
  EXPECT_TRUE(contains(job.failure(10000), "rank 2 has given no sign for"));
  EXPECT_EQ(job.end_of(1), 42);
}

TEST(ControlPlane, AShortStopIsAWarningAlone) {
  Job job(kQuick);
  kill(job.child(2), SIGSTOP);
  EXPECT_NE(job.warning(5000), "");
  kill(job.child(2), SIGCONT);
  EXPECT_EQ(job.failure(1000), "");
}

TEST(ControlPlane, WhoNeverCameIsNamedToAll) {
  ControlSettings settings = kQuick;
  settings.startup_s = 0.4;
  Job job(settings, 2);
  EXPECT_EQ(job.failure(5000), "start-up: no hello from rank 2 within 0.4 s");
  EXPECT_EQ(job.end_of(1), 42);
}

TEST(ControlPlane, AFailureIsHeardByAll) {
  Job job(kQuick);
  job.plane().fail("rank 2 failed: NaN in step 3");
  EXPECT_EQ(job.end_of(1), 42);
  EXPECT_EQ(job.end_of(2), 42);
  EXPECT_EQ(job.failure(5000), "rank 2 failed: NaN in step 3");
}

// A process that fails ends at once.
TEST(ControlPlane, AFailureOfARankThatLeavesIsHeardByAll) {
  Job job(kQuick);
  job.plane().fail("rank 2 failed: NaN in step 3");
  job.leave();
  EXPECT_EQ(job.end_of(1), 42);
  EXPECT_EQ(job.end_of(2), 42);
}

TEST(ControlPlane, TheEndWaitsForAll) {
  Job job(kQuick);
  EXPECT_FALSE(job.ended(1));
  job.plane().await_all();
  EXPECT_EQ(job.end_of(1), 7);
  EXPECT_EQ(job.end_of(2), 7);
  EXPECT_EQ(job.failure(0), "");
}

TEST(ControlPlane, AFailureEndsTheWaitForAll) {
  Job job(kQuick, 2);
  job.plane().fail("rank 2 failed: out of memory");
  EXPECT_THROW(job.plane().await_all(), Error);
  EXPECT_EQ(job.end_of(1), 42);
}

// Ranks that are threads. The first one looks at the connections that are ready, not at all.
TEST(ControlPlane, TheWorkOfAMessageDoesNotGrowWithTheRanks) {
  for (const int ranks : {64, 256}) {
    const ControlSettings calm{.beat_s = 10, .suspect_s = 100, .dead_s = 200};
    std::string text;
    const auto share = [&](const std::string& given) {
      return given.empty() ? text : text = given;
    };
    std::vector<std::unique_ptr<ControlPlane>> planes;
    const ControlReports reports{.last_operation = {},
                                 .warning = {},
                                 .failure = [](const std::string& line) { ADD_FAILURE() << line; },
                                 .stuck = {}};
    for (int rank = 0; rank < ranks; ++rank)
      planes.push_back(std::make_unique<ControlPlane>(rank, ranks, "lo", share, reports, calm));
    std::vector<std::thread> threads;
    for (auto& plane : planes) threads.emplace_back([&plane] { plane->await_all(); });
    for (std::thread& thread : threads) thread.join();
    const auto [messages, looks] = planes[0]->work();
    EXPECT_GE(messages, ranks - 1) << "hellos alone";
    // A connection is read until it has no more, and once when it ends.
    EXPECT_LE(looks, 2 * messages + ranks) << ranks << " ranks";
    threads.clear();
    for (auto& plane : planes) threads.emplace_back([&plane] { plane.reset(); });
    for (std::thread& thread : threads) thread.join();
  }
}

// Ranks that are threads take numbers at the same time; each is given to one of them.
TEST(ControlPlane, NumbersOfASeriesAreEachTakenOnce) {
  constexpr int kRanks = 5, kSeries = 2;
  constexpr int64_t kTaken = 6;  // by each rank
  std::string text;
  const auto share = [&](const std::string& given) { return given.empty() ? text : text = given; };
  const ControlReports reports{.last_operation = {},
                               .warning = {},
                               .failure = [](const std::string& line) { ADD_FAILURE() << line; },
                               .stuck = {}};
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (int rank = 0; rank < kRanks; ++rank)
    planes.push_back(std::make_unique<ControlPlane>(rank, kRanks, "lo", share, reports, kQuick));
  for (int series = 0; series < kSeries; ++series) {
    std::vector<int64_t> numbers(kRanks * kTaken);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        for (int64_t i = 0; i < kTaken; ++i)
          numbers[rank * kTaken + i] = planes[rank]->take_number(series);
      });
    for (std::thread& thread : threads) thread.join();
    std::ranges::sort(numbers);
    for (int64_t i = 0; i < kRanks * kTaken; ++i) EXPECT_EQ(numbers[i], i);
  }
  std::vector<std::thread> threads;
  for (auto& plane : planes) threads.emplace_back([&plane] { plane->await_all(), plane.reset(); });
  for (std::thread& thread : threads) thread.join();
}

TEST(ControlPlane, SilenceOfASetTimeEndsTheJobOrNone) {
  const ControlSettings usual = settings_for_timeout(4.5), patient = settings_for_timeout(45),
                        endless = settings_for_timeout(0);
  EXPECT_DOUBLE_EQ(usual.suspect_s, ControlSettings{}.suspect_s);
  EXPECT_DOUBLE_EQ(usual.dead_s, ControlSettings{}.dead_s);
  EXPECT_DOUBLE_EQ(patient.suspect_s, 20);
  EXPECT_DOUBLE_EQ(patient.dead_s, 45);
  EXPECT_EQ(endless.suspect_s, ControlSettings{}.suspect_s);
  ControlSettings settings = endless;
  settings.beat_s = 0.05, settings.suspect_s = 0.5, settings.grace_s = 60;
  Job job(settings);
  kill(job.child(2), SIGSTOP);
  EXPECT_NE(job.warning(5000), "");
  EXPECT_EQ(job.failure(5000), "");
  kill(job.child(2), SIGKILL);  // a closed connection still ends it
  EXPECT_TRUE(contains(job.failure(5000), "rank 2 is gone"));
}

TEST(ClockOffset, TheFastestRoundTripsCount) {
  ClockOffset offset;
  constexpr int64_t kOther = 5'000'000'000'000, kMs = 1'000'000;
  // Each answer takes 1 ms there and `back` ms home.
  const auto ask = [&](int64_t at, int64_t back) {
    offset.add(at, at + kMs + kOther, at + kMs + back * kMs);
  };
  ask(0, 9);
  EXPECT_EQ(offset.ns(), kOther - 4 * kMs);  // half of 10 ms, less the 1 ms there
  ask(20 * kMs, 1);
  EXPECT_EQ(offset.ns(), kOther);
  ask(30 * kMs, 50);
  EXPECT_EQ(offset.ns(), kOther);
  // 60 s later clocks may have drifted by 6 ms, so an answer within 8 ms counts.
  ask(60'000 * kMs, 6);
  EXPECT_EQ(offset.ns(), kOther - 5 * kMs / 2);
  EXPECT_EQ(offset.samples(), 4);
}

TEST(ControlPlane, AnIdleJobHasNothingToSay) {
  Job job(kQuick);
  EXPECT_EQ(job.failure(1000), "");
  EXPECT_EQ(job.warning(0), "");
}

}  // namespace
}  // namespace weft::test
