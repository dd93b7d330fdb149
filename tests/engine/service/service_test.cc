// Service: teams that take jobs, cancels, failures, watchers, and what a stopped service leaves to
// the next one. The models of these teams sleep.
#include "engine/service/service.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <set>
#include <thread>

#include "engine/service/sqlite.h"
#include "tests/engine/service/store_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Waits for at most 30 s.
template <class Condition>
bool eventually(Condition&& condition) {
  for (const Clock::time_point start = Clock::now(); seconds_since(start) < 30;) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return false;
}

bool sleep_or_stop(const HeldJob& held, milliseconds time) {
  for (const Clock::time_point end = Clock::now() + time; Clock::now() < end;) {
    if (held.stop()) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

void draw_asleep(HeldJob& held, milliseconds time) {
  if (sleep_or_stop(held, time))
    held.complete("{}");
  else
    held.fail({ErrorKind::kStopped, "stopped"});
}

// A thread that draws jobs until the service drains.
class Team {
 public:
  Team(Service& service, std::string name, std::function<void(HeldJob&)> draw)
      : thread_([&service, name = std::move(name), draw = std::move(draw)] {
          while (const auto held = service.take(name, "model")) draw(*held);
        }) {}

 private:
  std::jthread thread_;
};

// Collects what a watcher hears.
class Heard {
 public:
  std::function<void(const JobEvent&)> listener() {
    return [this](const JobEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
    };
  }
  std::vector<JobEvent> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  bool has(const std::string& type) const {
    for (const JobEvent& event : events())
      if (event.type == type) return true;
    return false;
  }
  std::string types() const {
    std::string out;
    for (const JobEvent& event : events()) out += (out.empty() ? "" : " ") + event.type;
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<JobEvent> events_;
};

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() { open({}); }
  void open(Service::Settings settings) {
    settings.ended = [this](const StoredJob& job) {
      const std::lock_guard lock(mutex_);
      ended_.push_back(job.job.id + " " + to_string(job.state));
    };
    settings.forgotten = [this](const StoredJob& job) {
      const std::lock_guard lock(mutex_);
      forgotten_.push_back(job.job.output);
    };
    service_ = std::make_unique<Service>(settings);
  }
  void submit(const std::string& id) {
    ASSERT_EQ(service_->submit(job_named(id)).answer, SubmitAnswer::kNew);
  }
  StoredJob find(const std::string& id) { return *service_->store().find(id); }
  bool becomes(const std::string& id, JobState state) {
    return eventually([&] { return find(id).state == state; });
  }
  std::vector<std::string> ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  std::vector<std::string> forgotten() {
    const std::lock_guard lock(mutex_);
    return forgotten_;
  }
  double seconds_for(int jobs, int teams) {
    open({.limits = {.queued_per_owner = jobs}});
    for (int job = 0; job < jobs; ++job) submit(std::to_string(job));
    const Clock::time_point start = Clock::now();
    std::vector<std::unique_ptr<Team>> drawing;
    for (int team = 0; team < teams; ++team)
      drawing.push_back(std::make_unique<Team>(*service_, std::to_string(team), [](HeldJob& held) {
        draw_asleep(held, milliseconds(50));
      }));
    EXPECT_TRUE(eventually(
        [&] { return service_->store().counts()[size_t(JobState::kCompleted)] == jobs; }));
    const double seconds = seconds_since(start);
    service_->drain();
    drawing.clear();
    return seconds;
  }

  std::mutex mutex_;
  std::vector<std::string> ended_, forgotten_;
  std::unique_ptr<Service> service_;
};

// A client that waits for previews gets them of the first job's steps, however fast it is drawn.
TEST_F(ServiceTest, KeepsThePreviewsThatAreWanted) {
  const auto before = service_->want_previews("a", 2);
  std::vector<int> wanted;
  submit("a");
  const auto draw = [&](HeldJob& held) {
    EXPECT_EQ(held.wanted_previews(), held.job().job.id == "a" ? 2 : 0);
    for (int step = 1; step <= 6; ++step) {
      if (held.listener().wants_preview(step, 6)) wanted.push_back(step);
      held.listener().preview({.step = step, .total = 6, .frames = {Frame(2, 2)}});
    }
    held.complete("{}");
  };
  {
    Team team(*service_, "t", draw);
    EXPECT_TRUE(becomes("a", JobState::kCompleted));
    submit("b");
    EXPECT_TRUE(becomes("b", JobState::kCompleted));
    service_->drain();
  }
  EXPECT_EQ(wanted, (std::vector<int>{2, 4}));
  EXPECT_EQ(before->take().size(), 2u);
  EXPECT_TRUE(before->take().empty());
  EXPECT_EQ(service_->want_previews("a", 2)->take().size(), 0u);
}

TEST_F(ServiceTest, TwoTeamsDrawAboutTwiceAsFast) {
  constexpr int kJobs = 40;
  const double one = seconds_for(kJobs, 1), two = seconds_for(kJobs, 2);
  std::printf("%d jobs of 50 ms: one team %.2f s, two teams %.2f s, %.2f times as fast\n", kJobs,
              one, two, one / two);
  EXPECT_GT(one / two, 1.5);
}

TEST_F(ServiceTest, DiscardsAJobThatRuns) {
  submit("runs");
  submit("waits");
  auto held = service_->take("team", "model");
  EXPECT_TRUE(service_->discard("waits"));
  EXPECT_FALSE(service_->discard("waits"));
  EXPECT_EQ(forgotten(), (std::vector<std::string>{"/results/waits.mp4"}));
  EXPECT_TRUE(service_->discard("runs"));
  EXPECT_FALSE(service_->discard("runs"));
  EXPECT_FALSE(service_->find("runs"));
  EXPECT_TRUE(held->stop());
  EXPECT_EQ(forgotten().size(), 1u);
  held->fail({ErrorKind::kStopped, "stopped"});
  EXPECT_TRUE(eventually([&] { return forgotten().size() == 2; }));
  EXPECT_EQ(ended(), (std::vector<std::string>{"waits cancelled", "runs cancelled"}));
}

TEST_F(ServiceTest, ForgetsManyJobsWithoutAPauseBetweenThem) {
  constexpr size_t kJobs = 20 * JobStore::kMostForgotten;
  open({.limits = {.kept_seconds = 0}});
  for (size_t i = 0; i < kJobs; ++i) {
    submit(std::to_string(i));
    service_->cancel(std::to_string(i));
  }
  EXPECT_TRUE(eventually([&] { return forgotten().size() == kJobs; }));
}

TEST_F(ServiceTest, CompletesAndTellsTheEnd) {
  submit("a");
  const auto held = service_->take("team", "model");
  EXPECT_EQ(held->job().job.id, "a");
  held->listener().progress({.stage = "denoise", .step = 1, .total = 2});
  EXPECT_TRUE(contains(service_->live("a")->progress, R"("stage":"denoise")"));
  held->listener().warning("slow disk at /some/folder/file");
  held->complete(R"({"bytes":1})");
  EXPECT_FALSE(service_->live("a"));
  const StoredJob job = find("a");
  EXPECT_EQ(job.state, JobState::kCompleted);
  EXPECT_EQ(job.result, R"({"bytes":1})");
  EXPECT_EQ(job.warnings, R"(["slow disk at file"])");
  EXPECT_TRUE(contains(job.progress, R"("percent":100)"));
  EXPECT_EQ(ended(), (std::vector<std::string>{"a completed"}));
  EXPECT_TRUE(service_->remove("a"));
  EXPECT_FALSE(service_->remove("a"));
  EXPECT_EQ(forgotten(), (std::vector<std::string>{"/results/a.mp4"}));
}

TEST_F(ServiceTest, TheFailureIsWhatClientsRead) {
  submit("a");
  service_->take("team", "model")
      ->fail({ErrorKind::kMemory, "needs 2 GiB. Try --dtype bf16 or --layout tensor=2"});
  EXPECT_EQ(
      find("a").error,
      R"({"code":"memory","hints":["--dtype bf16","--layout tensor=2"],"message":"needs 2 GiB."})");
  EXPECT_EQ(ended(), (std::vector<std::string>{"a failed"}));
}

TEST_F(ServiceTest, CancelsAQueuedAndARunningJob) {
  submit("running");
  submit("queued");
  const auto held = service_->take("team", "model");
  EXPECT_EQ(service_->cancel("queued"), CancelAnswer::kDone);
  EXPECT_EQ(service_->cancel("queued"), CancelAnswer::kDone);
  EXPECT_EQ(find("queued").state, JobState::kCancelled);
  EXPECT_EQ(ended(), (std::vector<std::string>{"queued cancelled"})) << "told once";
  EXPECT_FALSE(held->stop());
  EXPECT_EQ(service_->cancel("running"), CancelAnswer::kAsked);
  EXPECT_TRUE(held->stop()) << "at once in the same process";
  held->fail({ErrorKind::kStopped, "stopped"});
  EXPECT_EQ(find("running").state, JobState::kCancelled);
  EXPECT_EQ(service_->cancel("absent"), CancelAnswer::kUnknown);
}

TEST_F(ServiceTest, ACancelOfAnotherProcessComesToo) {
  const std::string path = new_file("cancel.db");
  open({.store = path});
  submit("a");
  const auto held = service_->take("team", "model");
  JobStore other(path);
  EXPECT_EQ(other.cancel("a"), CancelAnswer::kAsked);
  EXPECT_TRUE(eventually([&] { return held->stop().load(); }));
  held->fail({ErrorKind::kStopped, "stopped"});
  EXPECT_EQ(find("a").state, JobState::kCancelled);
}

TEST_F(ServiceTest, TakesWhatAnotherProcessSubmits) {
  const std::string path = new_file("other.db");
  open({.store = path});
  Team team(*service_, "team", [](HeldJob& held) { draw_asleep(held, milliseconds(1)); });
  std::this_thread::sleep_for(milliseconds(50));
  JobStore(path).submit(job_named("a"));
  EXPECT_TRUE(eventually([&] {
    const auto job = service_->store().find("a");
    return job && job->state == JobState::kCompleted;
  }));
  service_->drain();
}

TEST_F(ServiceTest, AnotherTeamTriesAgainWhatABrokenOneGivesBack) {
  submit("a");
  submit("b");
  const auto first = service_->take("broken", "model");
  const auto other = service_->take("whole", "model");
  EXPECT_EQ(other->job().job.id, "b");
  first->fail({ErrorKind::kComm, "rank 1 died"});
  EXPECT_EQ(find("a").state, JobState::kQueued);
  EXPECT_EQ(find("b").state, JobState::kRunning);
  EXPECT_FALSE(other->stop());
  const Clock::time_point start = Clock::now();
  const auto again = service_->take("whole", "model");  // after its pause of 2 s
  EXPECT_GT(seconds_since(start), 1.5);
  EXPECT_EQ(again->job().job.id, "a");
  EXPECT_EQ(again->job().attempt, 2);
  again->complete("{}");
  other->complete("{}");
  EXPECT_EQ(find("a").state, JobState::kCompleted);
  EXPECT_EQ(find("b").attempt, 1);
}

TEST_F(ServiceTest, AHeldJobThatIsDroppedIsGivenBack) {
  submit("a");
  service_->take("team", "model").reset();
  EXPECT_EQ(find("a").state, JobState::kQueued);
  EXPECT_GT(service_->store().next_claim_ms("model").value_or(0), 0);
}

TEST_F(ServiceTest, LeasesOfHeldJobsAreRenewed) {
  open({.limits = {.lease_seconds = 0.3}});
  submit("a");
  const auto held = service_->take("team", "model");
  std::this_thread::sleep_for(milliseconds(1200));
  EXPECT_FALSE(held->stop());
  EXPECT_EQ(find("a").attempt, 1);
  held->complete("{}");
  EXPECT_EQ(find("a").state, JobState::kCompleted);
}

TEST_F(ServiceTest, ALostClaimStopsItsTeamAndChangesNothing) {
  const std::string path = new_file("lost.db");
  open({.store = path});
  submit("a");
  const auto held = service_->take("team", "model");
  // Another process takes the job's end from it.
  JobStore other(path);
  EXPECT_TRUE(other.complete({.stored = held->job(), .worker = "team"}, R"({"by":"other"})", ""));
  EXPECT_TRUE(eventually([&] { return held->stop().load(); }));
  held->complete(R"({"by":"loser"})");
  EXPECT_EQ(find("a").result, R"({"by":"other"})");
  EXPECT_TRUE(ended().empty()) << "that process told it";
}

TEST_F(ServiceTest, ARunningJobHasADeadline) {
  open({.job_deadline_seconds = 0.1});
  submit("a");
  const auto held = service_->take("team", "model");
  EXPECT_TRUE(eventually([&] { return held->stop().load(); }));
  held->fail({ErrorKind::kStopped, "stopped"});
  EXPECT_EQ(find("a").state, JobState::kFailed);
  EXPECT_TRUE(contains(find("a").error, R"("code":"deadline_exceeded")"));
  EXPECT_TRUE(contains(find("a").error, "0.1 s"));
}

TEST_F(ServiceTest, TellsWhatTidyingEndsAndForgets) {
  open({.limits = {.lease_seconds = 0.3, .kept_seconds = 0.2}});
  NewJob job = job_named("a");
  job.deadline_seconds = 0.05;
  service_->submit(job);
  EXPECT_TRUE(eventually([&] { return !forgotten().empty(); }));
  EXPECT_EQ(ended(), (std::vector<std::string>{"a expired"}));
  EXPECT_EQ(forgotten(), (std::vector<std::string>{"/results/a.mp4"}));
}

TEST_F(ServiceTest, WatchersHearAllEventsInOrder) {
  submit("a");
  Heard heard;
  const auto watch = service_->watch("a", 0, heard.listener());
  const auto held = service_->take("team", "model");
  EXPECT_TRUE(eventually([&] { return heard.events().size() == 2; }));
  held->listener().progress({.stage = "denoise", .step = 1, .total = 2});
  Preview preview{.step = 1, .total = 2, .fps = 8};
  preview.frames.emplace_back(2, 2);
  held->listener().preview(preview);
  EXPECT_TRUE(eventually([&] { return heard.has("preview"); }));
  held->listener().warning("slow");
  EXPECT_TRUE(eventually([&] { return heard.has("log"); }));
  held->complete("{}");
  EXPECT_TRUE(eventually([&] { return heard.has("end"); }));
  EXPECT_EQ(heard.types(), "state state progress preview log state end");
  const std::vector<JobEvent> events = heard.events();
  EXPECT_EQ(events[0].data, R"({"attempt":0,"state":"queued"})");
  EXPECT_EQ(events[1].data, R"({"attempt":1,"state":"running"})");
  EXPECT_TRUE(contains(events[2].data, R"("step":1)"));
  EXPECT_EQ(events[3].data, R"({"step":1,"steps":2})");
  EXPECT_EQ(events[4].data, R"({"level":"warning","message":"slow"})");
  int64_t number = 0;
  for (const JobEvent& event : events) {
    const bool stored = event.type != "progress" && event.type != "preview";
    EXPECT_EQ(event.number, stored ? ++number : 0) << event.type;
  }
}

TEST_F(ServiceTest, WatchersHearOfJobsThatRunElsewhere) {
  const std::string path = new_file("elsewhere.db");
  Service::Settings settings{.store = path, .limits = {.lease_seconds = 0.3}};
  open(settings);
  Service elsewhere(settings);
  submit("a");
  Heard heard;
  const auto watch = service_->watch("a", 0, heard.listener());
  const auto held = elsewhere.take("team", "model");
  held->listener().progress({.stage = "denoise", .step = 1, .total = 2});
  EXPECT_TRUE(eventually([&] { return heard.has("progress"); }));
  EXPECT_FALSE(service_->live("a"));
  held->complete("{}");
  EXPECT_TRUE(eventually([&] { return heard.has("end"); }));
  EXPECT_TRUE(contains(heard.types(), "state state progress"));
  EXPECT_TRUE(ended().empty()) << "it is told where it ended";
}

TEST_F(ServiceTest, WarnsWhereTheStoreCannotBeWritten) {
  const std::string path = new_file("warned.db");
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto warned = [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  };
  open({.store = path, .limits = {.lease_seconds = 0.3}, .warned = warned});
  submit("a");
  auto held = service_->take("team", "model");
  Database other(path);
  auto lock_of_other = std::make_unique<Transaction>(other);
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return !lines.empty();
  }));
  lock_of_other.reset();
  held.reset();
  service_.reset();
  EXPECT_TRUE(contains(lines.at(0), "another program has locked it"));
}

TEST_F(ServiceTest, WatchersResumeFromANumber) {
  submit("a");
  service_->take("team", "model")->complete("{}");
  Heard all, rest, nothing;
  const auto from_begin = service_->watch("a", 0, all.listener());
  const auto from_second = service_->watch("a", 2, rest.listener());
  const auto from_end = service_->watch("a", 4, nothing.listener());
  EXPECT_TRUE(eventually([&] { return all.has("end") && rest.has("end") && nothing.has("end"); }));
  EXPECT_EQ(all.types(), "state state state end");
  EXPECT_EQ(rest.types(), "state end");
  EXPECT_EQ(rest.events()[0].number, 3);
  EXPECT_EQ(nothing.types(), "end") << "it heard the end before, and must not wait";
  EXPECT_FALSE(service_->watch("absent", 0, all.listener()));
}

TEST_F(ServiceTest, ProgressNeverFallsAndComesAtMostFourTimesASecond) {
  submit("a");
  const auto held = service_->take("team", "model");
  Heard heard;
  const auto watch = service_->watch("a", 0, heard.listener());
  const Clock::time_point start = Clock::now();
  for (int step = 0; step <= 500; ++step) {
    held->listener().progress({.stage = "denoise", .step = step, .total = 500});
    std::this_thread::sleep_for(milliseconds(1));
  }
  held->listener().progress({.stage = "load", .step = 0, .total = 1});
  const double seconds = seconds_since(start);
  EXPECT_TRUE(contains(service_->live("a")->progress, R"("percent":80)"));
  held->listener().progress({.stage = "write", .step = 1, .total = 1});
  EXPECT_TRUE(contains(service_->live("a")->progress, R"("percent":99)"));
  held->complete("{}");
  EXPECT_TRUE(eventually([&] { return heard.has("end"); }));
  double count = 0;
  for (const JobEvent& event : heard.events()) count += event.type == "progress";
  EXPECT_GE(count, 2);
  EXPECT_LE(count, 4 * seconds + 2);
}

TEST_F(ServiceTest, AWatchThatEndedIsNotCalled) {
  submit("a");
  Heard heard;
  auto watch = service_->watch("a", 0, heard.listener());
  EXPECT_TRUE(eventually([&] { return heard.has("state"); }));
  watch.reset();
  const size_t before = heard.events().size();
  service_->take("team", "model")->complete("{}");
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(heard.events().size(), before);
}

TEST_F(ServiceTest, TheNextServiceTakesUpWhatThisOneLeaves) {
  const std::string path = new_file("next.db");
  open({.store = path});
  for (const char* id : {"a", "b", "c"}) submit(id);
  {
    Team one(*service_, "one", [](HeldJob& held) { draw_asleep(held, milliseconds(60'000)); });
    Team two(*service_, "two", [](HeldJob& held) { draw_asleep(held, milliseconds(60'000)); });
    EXPECT_TRUE(becomes("b", JobState::kRunning));
    service_->stop_running();
  }
  EXPECT_EQ(service_->store().counts()[size_t(JobState::kQueued)], 3);
  EXPECT_EQ(service_->take("one", "model"), nullptr);
  service_.reset();
  open({.store = path});
  Team team(*service_, "one", [](HeldJob& held) { draw_asleep(held, milliseconds(1)); });
  for (const char* id : {"a", "b", "c"}) EXPECT_TRUE(becomes(id, JobState::kCompleted)) << id;
  EXPECT_EQ(find("a").attempt, 2);
  EXPECT_EQ(find("c").attempt, 1);
  service_->drain();
}

TEST_F(ServiceTest, AWaitingTeamMayGiveUp) {
  std::atomic<bool> give_up{false};
  std::jthread asker([&] {
    std::this_thread::sleep_for(milliseconds(60));
    give_up = true;
  });
  EXPECT_EQ(service_->take("team", "model", [&] { return give_up.load(); }), nullptr);
  EXPECT_TRUE(give_up);
}

TEST_F(ServiceTest, TakesJobsOfItsProgramAlone) {
  submit("a");
  int asked = 0;
  EXPECT_EQ(service_->take("team", "another", [&] { return ++asked == 4; }), nullptr);
  EXPECT_EQ(find("a").state, JobState::kQueued);
}

}  // namespace
}  // namespace weft::test
