// JobStore: every change of state, every answer, limits, events and pages.
#include "engine/service/job_store.h"

#include <algorithm>

#include "tests/engine/service/store_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

class JobStoreTest : public testing::Test {
 protected:
  JobStoreTest() { open(); }
  void open(const StoreLimits& limits = {}) {
    store_ = std::make_unique<JobStore>("", limits, clocks_.host());
  }
  void submit(const std::string& id) {
    ASSERT_EQ(store_->submit(job_named(id)).answer, SubmitAnswer::kNew);
  }
  Claim claim(const std::string& worker = "worker") { return *store_->claim(worker, "model"); }
  StoredJob find(const std::string& id) { return *store_->find(id); }
  JobState state(const std::string& id) { return find(id).state; }
  // "queued running end": the events, those of states by their state.
  std::string events(const std::string& id, int64_t after = 0) {
    std::string out;
    for (const JobEvent& event : store_->events(id, after)) {
      std::string shown = event.type;
      for (const char* name : {"queued", "running", "completed", "failed", "cancelled", "expired"})
        if (event.type == "state" && contains(event.data, name)) shown = name;
      out += (out.empty() ? "" : " ") + shown;
    }
    return out;
  }

  SetClocks clocks_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(JobStoreTest, KeepsWhatWasSubmitted) {
  NewJob job = job_named("a");
  job.owner = "someone";
  job.priority = 3;
  job.deadline_seconds = 60;
  EXPECT_EQ(store_->submit(job).id, "a");
  const StoredJob found = find("a");
  EXPECT_EQ(found.job.program, "model");
  EXPECT_EQ(found.job.owner, "someone");
  EXPECT_EQ(found.job.request, job.request);
  EXPECT_EQ(found.job.resolved, job.resolved);
  EXPECT_EQ(found.job.output, "/results/a.mp4");
  EXPECT_EQ(found.job.priority, 3);
  EXPECT_EQ(found.state, JobState::kQueued);
  EXPECT_EQ(found.attempt, 0);
  EXPECT_EQ(found.created_ms, clocks_.unix_ms);
  EXPECT_EQ(found.started_ms, 0);
  EXPECT_FALSE(store_->find("b"));
  expect_error(ErrorKind::kOutput, "job.id", [&] { store_->submit(job); });
}

TEST_F(JobStoreTest, SubmitsSeveralJobsOrNone) {
  open({.queued = 3});
  submit("a");
  const std::vector<NewJob> three{job_named("b"), job_named("c"), job_named("d")};
  EXPECT_EQ(store_->submit_all(three).back().answer, SubmitAnswer::kFull);
  EXPECT_FALSE(store_->find("b"));
  EXPECT_FALSE(store_->find("c"));
  EXPECT_EQ(events("b"), "");
  NewJob again = job_named("b");
  again.idempotency_key = "key#1";
  again.request_hash = "hash";
  const std::vector<NewJob> two{job_named("c"), again};
  const auto submitted = store_->submit_all(two);
  ASSERT_EQ(submitted.size(), 2u);
  EXPECT_EQ(submitted[0].id, "c");
  EXPECT_EQ(submitted[1].answer, SubmitAnswer::kNew);
  EXPECT_EQ(state("b"), JobState::kQueued);
  again.id = "e";
  EXPECT_EQ(store_->submit_all({&again, 1}).back().answer, SubmitAnswer::kSame);
  again.request_hash = "another";
  EXPECT_EQ(store_->submit_all({&again, 1}).back().answer, SubmitAnswer::kConflict);
}

TEST_F(JobStoreTest, CompletesAClaimedJob) {
  submit("a");
  clocks_.pass(1);
  const Claim held = claim();
  EXPECT_EQ(held.stored.job.id, "a");
  EXPECT_EQ(held.stored.attempt, 1);
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_EQ(find("a").worker, "worker");
  EXPECT_EQ(store_->renew(held, R"({"percent":5})"), HoldAnswer::kHeld);
  EXPECT_EQ(find("a").progress, R"({"percent":5})");
  EXPECT_EQ(store_->renew(held), HoldAnswer::kHeld);
  EXPECT_EQ(find("a").progress, R"({"percent":5})") << "a renewal without progress keeps it";
  clocks_.pass(1);
  EXPECT_TRUE(store_->complete(held, R"({"bytes":1})", R"(["slow"])"));
  const StoredJob found = find("a");
  EXPECT_EQ(found.state, JobState::kCompleted);
  EXPECT_EQ(found.result, R"({"bytes":1})");
  EXPECT_EQ(found.warnings, R"(["slow"])");
  EXPECT_EQ(found.started_ms, clocks_.unix_ms - 1000);
  EXPECT_EQ(found.finished_ms, clocks_.unix_ms);
  EXPECT_EQ(found.expires_ms, clocks_.unix_ms + 24 * 3600 * 1000);
  EXPECT_EQ(events("a"), "queued running completed end");
}

TEST_F(JobStoreTest, FailsWithItsError) {
  submit("a");
  EXPECT_TRUE(store_->fail(claim(), R"({"code":"memory"})", ""));
  EXPECT_EQ(find("a").error, R"({"code":"memory"})");
  EXPECT_EQ(events("a"), "queued running error failed end");
}

TEST_F(JobStoreTest, FinalStatesAreNeverLeft) {
  for (const char* id : {"a", "b", "c"}) submit(id);
  const Claim completed = claim(), failed = claim(), stopped = claim();
  EXPECT_TRUE(store_->complete(completed, "{}", ""));
  EXPECT_TRUE(store_->fail(failed, "{}", ""));
  EXPECT_TRUE(store_->stop(stopped));
  NewJob late = job_named("d");
  late.deadline_seconds = 5;
  store_->submit(late);
  clocks_.pass(6);
  EXPECT_FALSE(store_->claim("worker", "model")) << "its deadline is over";
  store_->tidy();
  submit("e");
  EXPECT_EQ(store_->cancel("e"), CancelAnswer::kDone);
  for (const Claim& over : {completed, failed, stopped}) {
    EXPECT_FALSE(store_->complete(over, "{}", ""));
    EXPECT_FALSE(store_->fail(over, "{}", ""));
    EXPECT_FALSE(store_->stop(over));
    EXPECT_FALSE(store_->give_back(over, "why"));
    EXPECT_FALSE(store_->release(over));
    EXPECT_FALSE(store_->add_event(over, "log", "{}"));
    EXPECT_EQ(store_->renew(over), HoldAnswer::kLost);
  }
  EXPECT_EQ(store_->cancel("a"), CancelAnswer::kOver);
  EXPECT_EQ(store_->cancel("b"), CancelAnswer::kOver);
  EXPECT_EQ(store_->cancel("c"), CancelAnswer::kDone);
  EXPECT_EQ(store_->cancel("d"), CancelAnswer::kOver);
  EXPECT_EQ(store_->cancel("e"), CancelAnswer::kDone);
  EXPECT_EQ(store_->cancel("f"), CancelAnswer::kUnknown);
  clocks_.pass(3600);
  store_->tidy();
  EXPECT_EQ(store_->counts(), (std::vector<int64_t>{0, 0, 1, 1, 2, 1}));
  EXPECT_EQ(events("d"), "queued expired end");
  EXPECT_EQ(events("e"), "queued cancelled end");
}

TEST_F(JobStoreTest, ACancelReachesTheWorker) {
  submit("a");
  const Claim held = claim();
  EXPECT_EQ(store_->cancel("a"), CancelAnswer::kAsked);
  EXPECT_TRUE(find("a").cancel_requested);
  EXPECT_EQ(store_->renew(held), HoldAnswer::kCancel);
  EXPECT_EQ(state("a"), JobState::kRunning);
  EXPECT_TRUE(store_->stop(held));
  EXPECT_EQ(state("a"), JobState::kCancelled);
}

TEST_F(JobStoreTest, ACancelledJobIsNotTriedAgain) {
  for (const char* id : {"a", "b", "c"}) submit(id);
  const Claim given = claim(), released = claim(), lost = claim();
  for (const char* id : {"a", "b", "c"}) store_->cancel(id);
  EXPECT_TRUE(store_->give_back(given, "why"));
  EXPECT_TRUE(store_->release(released));
  clocks_.pass(31);
  store_->tidy();
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(state(id), JobState::kCancelled) << id;
  EXPECT_EQ(store_->renew(lost), HoldAnswer::kLost);
}

TEST_F(JobStoreTest, TakesTheHighestPriorityThenTheOldestOfItsProgram) {
  for (const char* id : {"old", "young"}) submit(id);
  NewJob urgent = job_named("urgent"), other = job_named("other");
  urgent.priority = 1;
  other.priority = 2;
  other.program = "another";
  store_->submit(urgent);
  store_->submit(other);
  EXPECT_EQ(find("urgent").position, 1);
  EXPECT_EQ(find("old").position, 2);
  EXPECT_EQ(find("young").position, 3);
  EXPECT_EQ(find("young").depth, 3);
  EXPECT_EQ(find("other").position, 1);
  EXPECT_EQ(claim().stored.job.id, "urgent");
  EXPECT_EQ(claim().stored.job.id, "old");
  EXPECT_EQ(claim().stored.job.id, "young");
  EXPECT_FALSE(store_->claim("worker", "model"));
  EXPECT_EQ(find("young").position, 0);
  EXPECT_EQ(state("other"), JobState::kQueued);
}

TEST_F(JobStoreTest, ALeaseThatEndsFencesTheOldWorker) {
  submit("a");
  const Claim old = claim("first");
  clocks_.pass(20);
  EXPECT_EQ(store_->renew(old), HoldAnswer::kHeld);
  clocks_.pass(29);
  store_->tidy();
  EXPECT_EQ(state("a"), JobState::kRunning) << "it was renewed";
  clocks_.pass(1);
  store_->tidy();
  EXPECT_EQ(state("a"), JobState::kQueued);
  EXPECT_EQ(find("a").started_ms, 0);
  EXPECT_FALSE(store_->claim("second", "model")) << "it waits 2 s";
  EXPECT_EQ(store_->next_claim_ms("model"), 2000);
  clocks_.pass(2);
  const Claim fresh = claim("first");
  EXPECT_EQ(fresh.stored.attempt, 2);
  EXPECT_FALSE(store_->complete(old, "{}", "")) << "the same worker, but an older attempt";
  Claim stranger = fresh;
  stranger.worker = "second";
  EXPECT_FALSE(store_->complete(stranger, "{}", ""));
  EXPECT_TRUE(store_->complete(fresh, "{}", ""));
  EXPECT_EQ(events("a"), "queued running queued running completed end");
}

TEST_F(JobStoreTest, ThreeLostAttemptsArePoison) {
  submit("a");
  for (int attempt = 1; attempt <= 3; ++attempt) {
    EXPECT_EQ(claim().stored.attempt, attempt);
    clocks_.pass(31);
    store_->tidy();
    EXPECT_EQ(store_->next_claim_ms("model").value_or(-1), attempt < 3 ? 1000 << attempt : -1);
    clocks_.pass(1 << attempt);
  }
  EXPECT_EQ(state("a"), JobState::kFailed);
  EXPECT_TRUE(contains(find("a").error, R"("code":"poisoned")"));
  EXPECT_TRUE(contains(find("a").error, "3 attempts"));
}

TEST_F(JobStoreTest, AJobThatIsGivenBackWaitsAndOneThatIsReleasedDoesNot) {
  submit("a");
  EXPECT_FALSE(store_->next_claim_ms("another"));
  EXPECT_EQ(store_->next_claim_ms("model"), 0);
  EXPECT_TRUE(store_->give_back(claim(), "rank 1 died"));
  EXPECT_EQ(store_->next_claim_ms("model"), 2000);
  clocks_.pass(2);
  for (int times = 0; times < 5; ++times) EXPECT_TRUE(store_->release(claim()));
  EXPECT_TRUE(store_->give_back(claim(), "rank 1 died"));
  EXPECT_EQ(store_->next_claim_ms("model"), 4000) << "releases do not count";
  clocks_.pass(4);
  EXPECT_EQ(find("a").attempt, 7);
  EXPECT_TRUE(store_->give_back(claim(), "rank 2 died"));
  EXPECT_EQ(state("a"), JobState::kFailed);
  EXPECT_TRUE(contains(find("a").error, "rank 2 died"));
}

TEST_F(JobStoreTest, ThePauseIsAtMostAMinute) {
  open({.attempts = 100});
  submit("a");
  for (int spent = 1; spent <= 70; ++spent) {
    EXPECT_TRUE(store_->give_back(claim(), "why"));
    EXPECT_EQ(store_->next_claim_ms("model"), 1000 * std::min(60, spent < 6 ? 1 << spent : 60));
    clocks_.pass(60);
  }
}

TEST_F(JobStoreTest, ADeadlineCountsUntilTheStart) {
  NewJob job = job_named("a");
  job.deadline_seconds = 10;
  store_->submit(job);
  clocks_.pass(9);
  store_->tidy();
  const Claim held = claim();
  clocks_.pass(20);
  EXPECT_TRUE(store_->give_back(held, "why"));
  clocks_.pass(3600);
  store_->tidy();
  EXPECT_EQ(state("a"), JobState::kQueued) << "it had begun";
}

TEST_F(JobStoreTest, AKeyStandsForOneRequestOfItsOwner) {
  NewJob job = job_named("a");
  job.owner = "someone";
  job.idempotency_key = "key";
  job.request_hash = "hash";
  EXPECT_EQ(store_->submit(job).answer, SubmitAnswer::kNew);
  job.id = "b";
  const JobStore::Submitted again = store_->submit(job);
  EXPECT_EQ(again.answer, SubmitAnswer::kSame);
  EXPECT_EQ(again.id, "a");
  job.request_hash = "another";
  EXPECT_EQ(store_->submit(job).answer, SubmitAnswer::kConflict);
  EXPECT_FALSE(store_->find("b"));
  job.owner = "another";
  EXPECT_EQ(store_->submit(job).answer, SubmitAnswer::kNew);
  // A key is forgotten with its job, and no sooner.
  EXPECT_TRUE(store_->complete(claim(), "{}", ""));
  EXPECT_TRUE(store_->remove("a"));
  job.id = "c";
  job.owner = "someone";
  EXPECT_EQ(store_->submit(job).answer, SubmitAnswer::kNew);
  clocks_.pass(24 * 3600);
  store_->tidy();
  job.id = "d";
  EXPECT_EQ(store_->submit(job).answer, SubmitAnswer::kSame);
}

TEST_F(JobStoreTest, QueuesHaveLimits) {
  open({.queued = 3, .queued_per_owner = 2});
  const auto answer = [&](const std::string& id, const std::string& owner) {
    NewJob job = job_named(id);
    job.owner = owner;
    return store_->submit(job).answer;
  };
  EXPECT_EQ(answer("a", "one"), SubmitAnswer::kNew);
  EXPECT_EQ(answer("b", "one"), SubmitAnswer::kNew);
  EXPECT_EQ(answer("c", "one"), SubmitAnswer::kOwnerFull);
  EXPECT_EQ(answer("d", "two"), SubmitAnswer::kNew);
  EXPECT_EQ(answer("e", "two"), SubmitAnswer::kFull);
  claim();
  EXPECT_EQ(answer("f", ""), SubmitAnswer::kNew) << "a running job does not count";
  open({.queued = 3, .queued_per_owner = 1});
  EXPECT_EQ(answer("a", ""), SubmitAnswer::kNew);
  EXPECT_EQ(answer("b", ""), SubmitAnswer::kNew) << "anyone has no limit of their own";
  NewJob batch = job_named("c");
  batch.priority = -1;
  EXPECT_EQ(store_->submit(batch).answer, SubmitAnswer::kNew);
  EXPECT_EQ(answer("d", ""), SubmitAnswer::kNew) << "one of a lower priority does not count";
}

TEST_F(JobStoreTest, KeepsTheLastEvents) {
  open({.events_per_job = 5});
  submit("a");
  const Claim held = claim();
  for (int line = 1; line <= 10; ++line)
    EXPECT_TRUE(store_->add_event(held, "log", std::to_string(line)));
  const std::vector<JobEvent> kept = store_->events("a", 0);
  ASSERT_EQ(kept.size(), 5u);
  EXPECT_EQ(kept.front().number, 8);
  EXPECT_EQ(kept.front().data, "6");
  EXPECT_EQ(kept.back().number, 12);
  EXPECT_TRUE(store_->complete(held, "{}", ""));
  EXPECT_EQ(events("a", 12), "completed end");
  EXPECT_EQ(events("b"), "");
}

TEST_F(JobStoreTest, RemovesAndForgetsWhatIsOver) {
  submit("a");
  submit("b");
  EXPECT_FALSE(store_->remove("a"));
  const Claim held = claim();
  EXPECT_FALSE(store_->remove("a"));
  EXPECT_TRUE(store_->complete(held, "{}", ""));
  EXPECT_TRUE(store_->complete(claim(), R"({"b":1})", ""));
  EXPECT_TRUE(store_->remove("a"));
  EXPECT_FALSE(store_->find("a"));
  EXPECT_EQ(events("a"), "");
  clocks_.pass(24 * 3600 - 1);
  EXPECT_TRUE(store_->tidy().empty());
  clocks_.pass(1);
  const std::vector<StoredJob> forgotten = store_->tidy();
  ASSERT_EQ(forgotten.size(), 1u);
  EXPECT_EQ(forgotten[0].job.output, "/results/b.mp4");
  EXPECT_EQ(forgotten[0].result, R"({"b":1})");
  EXPECT_FALSE(store_->find("b"));
}

TEST_F(JobStoreTest, ForgetsManyJobsAFewAtATime) {
  const auto most = static_cast<size_t>(JobStore::kMostForgotten), jobs = 2 * most + 3;
  for (size_t i = 0; i < jobs; ++i) {
    submit(std::to_string(i));
    store_->cancel(std::to_string(i));
    clocks_.pass(0.001);
  }
  clocks_.pass(24 * 3600);
  std::vector<std::string> forgotten;
  for (const size_t left : {most, most, size_t{3}, size_t{0}}) {
    const std::vector<StoredJob> batch = store_->tidy();
    EXPECT_EQ(batch.size(), left);
    for (const StoredJob& job : batch) forgotten.push_back(job.job.id);
    EXPECT_EQ(store_->list(jobs, "")->jobs.size(), jobs - forgotten.size());
  }
  std::vector<std::string> oldest_first;
  for (size_t i = 0; i < jobs; ++i) oldest_first.push_back(std::to_string(i));
  EXPECT_EQ(forgotten, oldest_first);
}

TEST_F(JobStoreTest, ADiscardedJobIsHiddenThenForgotten) {
  for (const char* id : {"a", "b", "c"}) submit(id);
  EXPECT_FALSE(store_->discard("a"));  // it waits
  EXPECT_FALSE(store_->discard("x"));
  const Claim stopped = claim(), lost = claim();
  EXPECT_TRUE(store_->discard("a"));
  EXPECT_TRUE(store_->discard("b"));
  EXPECT_TRUE(find("a").discarded);
  EXPECT_EQ(store_->renew(stopped), HoldAnswer::kCancel);
  EXPECT_EQ(store_->list(10, "")->jobs.size(), 1u);
  EXPECT_EQ(store_->list(10, "", false)->jobs.front().job.id, "c");
  EXPECT_TRUE(store_->tidy().empty());  // it runs still
  EXPECT_TRUE(store_->stop(stopped));
  EXPECT_FALSE(store_->discard("a"));
  EXPECT_EQ(store_->tidy().at(0).job.id, "a");
  EXPECT_FALSE(store_->find("a"));
  clocks_.pass(31);  // the other worker is not heard of any more
  EXPECT_EQ(store_->tidy().at(0).job.id, "b");
  EXPECT_EQ(state("c"), JobState::kQueued);
}

TEST_F(JobStoreTest, ListsPages) {
  for (const char* id : {"a", "b", "c", "d", "e"}) submit(id);
  const auto ids = [&](const std::string& after, bool newest) {
    const JobStore::Page page = *store_->list(2, after, newest);
    std::string out;
    for (const StoredJob& each : page.jobs) out += each.job.id;
    return out + (page.has_more ? "+" : "");
  };
  EXPECT_EQ(ids("", true), "ed+");
  EXPECT_EQ(ids("d", true), "cb+");
  EXPECT_EQ(ids("b", true), "a");
  EXPECT_EQ(ids("a", true), "");
  EXPECT_EQ(ids("", false), "ab+");
  EXPECT_EQ(ids("c", false), "de");
  EXPECT_FALSE(store_->list(2, "x"));
}

// Clients list and remove in turns.
TEST_F(JobStoreTest, PagesGoOnAfterARemovedJob) {
  for (const char* id : {"a", "b", "c", "d"}) store_->submit(job_named(id));
  const auto remove = [&](const char* id) {
    store_->cancel(id);
    EXPECT_TRUE(store_->remove(id));
  };
  const auto after = [&](const char* id, bool newest) {
    std::string ids;
    const auto page = store_->list(10, id, newest);
    EXPECT_TRUE(page) << id;
    for (const StoredJob& job : page ? page->jobs : std::vector<StoredJob>()) ids += job.job.id;
    return ids;
  };
  remove("b");
  EXPECT_EQ(after("b", true), "a");
  EXPECT_EQ(after("b", false), "cd");
  remove("d");  // the last one, whose number another job gets
  EXPECT_EQ(after("d", false), "");
  store_->submit(job_named("e"));
  EXPECT_EQ(after("d", false), "e");
  EXPECT_EQ(after("d", true), "ca");
  EXPECT_EQ(after("e", true), "ca");
  EXPECT_FALSE(store_->list(10, "x"));
}

TEST_F(JobStoreTest, OneProgramTakesOverTheJobsOfAnother) {
  for (const char* id : {"old 1", "old 2", "over", "mine", "other"}) {
    NewJob job = job_named(id);
    job.program = job.id == "mine" ? "mine" : job.id == "other" ? "other" : "old";
    store_->submit(job);
  }
  store_->cancel("over");
  const Claim running = *store_->claim("w", "old");
  std::vector<std::string> each;
  for (const StoredJob& job : store_->one_of_each_other("mine")) each.push_back(job.job.program);
  EXPECT_EQ(each, (std::vector<std::string>{"old", "other"}));
  EXPECT_EQ(store_->change_program("old", "mine"), 2);
  EXPECT_EQ(store_->find("over")->job.program, "old");
  EXPECT_TRUE(store_->complete(running, "{}", ""));  // its worker goes on
  EXPECT_EQ(store_->claim("w", "mine")->stored.job.id, "old 2");
  EXPECT_EQ(store_->claim("w", "mine")->stored.job.id, "mine");
  EXPECT_FALSE(store_->claim("w", "old"));
}

TEST_F(JobStoreTest, TheVersionTellsOfChanges) {
  const int64_t empty = store_->version();
  EXPECT_EQ(store_->version(), empty);
  submit("a");
  EXPECT_NE(store_->version(), empty);
}

}  // namespace
}  // namespace weft::test
