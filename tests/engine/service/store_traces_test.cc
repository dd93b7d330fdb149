// JobStore against a model of its states: random traces of calls, with workers that die, zombies
// that come back and clocks that pass. Every answer and state is as the model has it, and the
// events of a job tell of legal changes alone.
#include <algorithm>
#include <map>
#include <set>

#include "tests/engine/service/store_testing.h"
#include "tests/support/draw.h"

namespace weft::test {
namespace {

struct ModelJob {
  JobState state = JobState::kQueued;
  int order = 0, priority = 0, attempt = 0, spent = 0;
  std::string worker{};
  bool cancel_requested = false;
  int64_t lease_until = 0, not_before = 0, deadline = 0;
};

constexpr int kAttempts = 3, kQueued = 3, kOwnerQueued = 2;
constexpr int64_t kLease = 30'000;

class Model {
 public:
  SubmitAnswer submit(const std::string& id, int priority, int64_t deadline) {
    const auto before = std::ranges::count_if(jobs, [&](const auto& entry) {
      return entry.second.state == JobState::kQueued && entry.second.priority >= priority;
    });
    if (before >= kQueued) return SubmitAnswer::kFull;
    if (count(JobState::kQueued) >= kOwnerQueued) return SubmitAnswer::kOwnerFull;
    const int order = static_cast<int>(jobs.size());
    jobs[id] = {.order = order, .priority = priority, .deadline = deadline};
    return SubmitAnswer::kNew;
  }
  std::string claim(const std::string& worker, int64_t now) {
    const std::string* best = nullptr;
    for (const auto& [id, job] : jobs) {
      const bool free = job.state == JobState::kQueued && job.not_before <= now &&
                        (job.deadline == 0 || job.deadline > now);
      if (free && (!best || std::pair(-job.priority, job.order) <
                                std::pair(-jobs[*best].priority, jobs[*best].order)))
        best = &id;
    }
    if (!best) return "";
    ModelJob& job = jobs[*best];
    job.state = JobState::kRunning;
    job.worker = worker;
    job.lease_until = now + kLease;
    job.deadline = 0;
    ++job.attempt;
    return *best;
  }
  bool holds(const Claim& claim) const {
    const ModelJob& job = jobs.at(claim.stored.job.id);
    return job.state == JobState::kRunning && job.attempt == claim.stored.attempt &&
           job.worker == claim.worker;
  }
  CancelAnswer cancel(const std::string& id) {
    ModelJob& job = jobs.at(id);
    if (job.state == JobState::kCancelled) return CancelAnswer::kDone;
    if (is_over(job.state)) return CancelAnswer::kOver;
    if (job.state == JobState::kRunning) {
      job.cancel_requested = true;
      return CancelAnswer::kAsked;
    }
    job.state = JobState::kCancelled;
    return CancelAnswer::kDone;
  }
  void try_again(ModelJob& job, int64_t now) {
    if (job.cancel_requested) {
      job.state = JobState::kCancelled;
    } else if (++job.spent == kAttempts) {
      job.state = JobState::kFailed;
    } else {
      job.state = JobState::kQueued;
      job.not_before = now + (1000 << job.spent);
    }
  }
  void release(ModelJob& job) {
    job.state = job.cancel_requested ? JobState::kCancelled : JobState::kQueued;
    job.not_before = 0;
  }
  void tidy(int64_t now) {
    for (auto& [id, job] : jobs) {
      if (job.state == JobState::kRunning && job.lease_until <= now)
        try_again(job, now);
      else if (job.state == JobState::kQueued && job.deadline > 0 && job.deadline <= now)
        job.state = JobState::kExpired;
    }
  }

  std::map<std::string, ModelJob> jobs;

 private:
  int64_t count(JobState state) const {
    return std::ranges::count_if(jobs,
                                 [&](const auto& each) { return each.second.state == state; });
  }
};

bool legal(const std::string& from, const std::string& to) {
  static const std::map<std::string, std::set<std::string>> kLegal = {
      {"", {"queued"}},
      {"queued", {"running", "cancelled", "expired"}},
      {"running", {"queued", "completed", "failed", "cancelled"}}};
  const auto found = kLegal.find(from);
  return found != kLegal.end() && found->second.contains(to);
}

class StoreTraces : public testing::Test {
 protected:
  static constexpr int kSteps = 14;

  void trace(Draw& draw) {
    draw_ = &draw;
    model_ = {};
    claims_.clear();
    prefix_ = std::to_string(++traces_) + "-";
    for (int step = 0; step < kSteps; ++step) {
      one_call();
      compare();
      if (HasFailure()) return;
    }
    end();
  }

  void one_call() {
    const int call = draw(12);
    if (call <= 1) return submit();
    if (call <= 3) return claim();
    if (call == 4) return cancel();
    if (call == 5) return pass();
    if (!claims_.empty()) use_claim(claims_[static_cast<size_t>(draw(std::ssize(claims_)))], call);
  }

  void submit() {
    NewJob job = job_named(prefix_ + std::to_string(model_.jobs.size()));
    job.owner = "someone";
    job.priority = draw(2);
    job.deadline_seconds = draw(3) == 0 ? 20 : 0;
    const int64_t deadline = job.deadline_seconds > 0 ? clocks_.boot_ms + 20'000 : 0;
    EXPECT_EQ(store_.submit(job).answer, model_.submit(job.id, job.priority, deadline));
  }

  void claim() {
    const std::string worker = draw(2) == 0 ? "one" : "two";
    const std::string expected = model_.claim(worker, clocks_.boot_ms);
    const std::optional<Claim> claimed = store_.claim(worker, "model");
    EXPECT_EQ(claimed ? claimed->stored.job.id : "", expected);
    if (claimed) claims_.push_back(*claimed);
  }

  void cancel() {
    if (model_.jobs.empty()) return;
    const std::string id = prefix_ + std::to_string(draw(std::ssize(model_.jobs)));
    EXPECT_EQ(store_.cancel(id), model_.cancel(id));
  }

  // The clock of the wall may be set meanwhile.
  void pass() {
    constexpr double kSeconds[] = {1, 3, 25, 31};
    clocks_.pass(kSeconds[draw(4)]);
    clocks_.unix_ms += (draw(3) - 1) * 3'600'000;
    model_.tidy(clocks_.boot_ms);
    store_.tidy();
  }

  // A claim of any time, so most are of workers that have lost their job.
  void use_claim(const Claim& claim, int call) {
    const bool held = model_.holds(claim);
    ModelJob& job = model_.jobs.at(claim.stored.job.id);
    if (call == 6) {
      const HoldAnswer answer = store_.renew(claim, "{}");
      EXPECT_EQ(answer, !held                  ? HoldAnswer::kLost
                        : job.cancel_requested ? HoldAnswer::kCancel
                                               : HoldAnswer::kHeld);
      if (held) job.lease_until = clocks_.boot_ms + kLease;
    } else if (call == 7) {
      EXPECT_EQ(store_.complete(claim, "{}", ""), held);
      if (held) job.state = JobState::kCompleted;
    } else if (call == 8) {
      EXPECT_EQ(store_.fail(claim, "{}", ""), held);
      if (held) job.state = JobState::kFailed;
    } else if (call == 9) {
      EXPECT_EQ(store_.stop(claim), held);
      if (held) job.state = JobState::kCancelled;
    } else if (call == 10) {
      EXPECT_EQ(store_.give_back(claim, "why"), held);
      if (held) model_.try_again(job, clocks_.boot_ms);
    } else {
      EXPECT_EQ(store_.release(claim), held);
      if (held) model_.release(job);
    }
  }

  void compare() {
    for (const auto& [id, job] : model_.jobs) {
      const std::optional<StoredJob> stored = store_.find(id);
      ASSERT_TRUE(stored) << id;
      EXPECT_EQ(stored->state, job.state) << id;
      EXPECT_EQ(stored->attempt, job.attempt) << id;
      EXPECT_EQ(stored->cancel_requested, job.cancel_requested) << id;
    }
  }

  // Every job comes to an end, after which its events are looked at.
  void end() {
    for (const auto& [id, job] : model_.jobs) store_.cancel(id);
    clocks_.pass(31);
    store_.tidy();
    for (const auto& [id, job] : model_.jobs) {
      ASSERT_TRUE(is_over(store_.find(id)->state)) << id;
      std::string state;
      bool ended = false;
      for (const JobEvent& event : store_.events(id, 0)) {
        EXPECT_FALSE(ended) << id;
        ended = event.type == "end";
        if (event.type != "state") continue;
        const size_t begin = event.data.find(R"("state":")") + 9;
        const std::string next = event.data.substr(begin, event.data.find('"', begin) - begin);
        EXPECT_TRUE(legal(state, next)) << id << ": from '" << state << "' to '" << next << "'";
        state = next;
      }
      EXPECT_TRUE(ended) << id;
      EXPECT_EQ(state, to_string(store_.find(id)->state));
      EXPECT_TRUE(store_.remove(id));
    }
  }

  int draw(int64_t below) { return static_cast<int>(draw_->below(below)); }

  SetClocks clocks_;
  JobStore store_{"",
                  {.queued = kQueued,
                   .queued_per_owner = kOwnerQueued,
                   .attempts = kAttempts,
                   .kept_seconds = 1e9},
                  clocks_.host()};
  Draw* draw_ = nullptr;
  int64_t traces_ = 0;
  Model model_;
  std::string prefix_;
  std::vector<Claim> claims_;
};

TEST_F(StoreTraces, FollowTheModel) {
  for_cases(2000, [&](Draw& draw) { trace(draw); });
}

}  // namespace
}  // namespace weft::test
