#include "engine/service/job_store.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "engine/service/job_failure.h"
#include "engine/service/job_rows.h"
#include "engine/service/store_schema.h"
#include "io/json.h"

namespace weft {
namespace {

int64_t to_ms(double seconds) { return std::llround(seconds * 1000); }

// Before a further attempt.
int64_t pause_ms(int64_t spent) {
  return int64_t{1000} * std::min(60, 1 << std::min(spent, int64_t{6}));
}

std::string poisoned(int64_t attempts, const std::string& why) {
  const std::string message = std::to_string(attempts) +
                              (attempts == 1 ? " attempt" : " attempts") +
                              " ended without a result; the last one: " + why;
  return to_json(JobFailure{.code = "poisoned", .message = message}).dump();
}

// A running job, and the attempt that holds it.
struct Attempt {
  int64_t seq = 0, number = 0, spent = 0;
  std::string worker{};
  bool cancel_requested = false;
};

struct Ending {
  JobState state;
  std::string result{}, error{}, warnings{};
};

}  // namespace

struct JobStore::Impl {
  Impl(const std::string& path, const StoreLimits& limits, const StoreHost& given)
      : limits_(limits), host_(complete_host(given)), sure_(open_store(path, host_)) {
    if (limits.kept_seconds)
      run(sure(), "UPDATE store SET value = ? WHERE name = 'kept_ms'",
          std::to_string(to_ms(*limits.kept_seconds)));
    if (path.empty()) return;
    fast_ = std::make_unique<Database>(path);
    fast_->script(
        "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; PRAGMA cache_size = -512");
  }

  Database& sure() { return *sure_; }
  Database& fast() { return fast_ ? *fast_ : *sure_; }

  int64_t kept_ms() {
    return *run(sure(), "SELECT CAST(value AS INTEGER) FROM store WHERE name = 'kept_ms'");
  }
  Submitted submit(const NewJob& job);  // within a transaction
  std::optional<Submitted> earlier(const std::string& owner, const std::string& key,
                                   const std::string& request_hash);
  std::optional<Attempt> held(const Claim& claim);
  void add_event(Database& database, int64_t seq, const JobEvent& event) {
    insert_event(database, seq, host_.unix_ms(), event, limits_.events_per_job);
  }
  void record(int64_t seq, JobState state, int64_t attempt);
  void close_attempt(const Attempt& attempt, const std::string& outcome);
  void finish(const Attempt& attempt, const Ending& ending);
  void finish_queued(int64_t seq, JobState state);
  void requeue(const Attempt& attempt, const std::string& outcome, bool counts);
  void try_again(const Attempt& attempt, const std::string& why);
  // Runs `change` as one transaction where the claim still holds its job, and returns whether it
  // did.
  bool if_held(const Claim& claim, const std::function<void(const Attempt&)>& change);

  bool something_ended();
  // Both return the `seq` of the jobs that they changed.
  std::vector<int64_t> end_leases();
  std::vector<int64_t> end_deadlines();
  std::vector<StoredJob> over_among(const std::vector<int64_t>& jobs);
  std::vector<StoredJob> forget();

  const StoreLimits limits_;
  const StoreHost host_;
  std::mutex mutex_;                // guards the members below
  std::unique_ptr<Database> sure_;  // syncs every commit
  std::unique_ptr<Database> fast_;  // leaves that to the system: progress, which may be lost
  int64_t changes_ = 0;
};

JobStore::JobStore(const std::string& path, const StoreLimits& limits, const StoreHost& host)
    : impl_(std::make_unique<Impl>(path, limits, host)) {}
JobStore::~JobStore() = default;

JobStore::Submitted JobStore::submit(const NewJob& job) { return submit_all({&job, 1}).back(); }

std::vector<JobStore::Submitted> JobStore::submit_all(std::span<const NewJob> jobs) {
  const std::lock_guard lock(impl_->mutex_);
  Transaction transaction(impl_->sure());
  std::vector<Submitted> all;
  for (const NewJob& job : jobs) {
    all.push_back(impl_->submit(job));
    if (is_refusal(all.back().answer)) return all;
  }
  transaction.commit();
  ++impl_->changes_;
  return all;
}

std::optional<JobStore::Submitted> JobStore::earlier(const std::string& owner,
                                                     const std::string& key,
                                                     const std::string& request_hash) {
  const std::lock_guard lock(impl_->mutex_);
  return impl_->earlier(owner, key, request_hash);
}

std::optional<JobStore::Submitted> JobStore::Impl::earlier(const std::string& owner,
                                                           const std::string& key,
                                                           const std::string& request_hash) {
  if (key.empty()) return std::nullopt;
  Query used(sure(),
             "SELECT idempotency.request_hash, id FROM idempotency JOIN job ON seq = job "
             "WHERE idempotency.owner = ? AND key = ?",
             owner, key);
  if (!used.next()) return std::nullopt;
  if (used.text(0) != request_hash) return Submitted{SubmitAnswer::kConflict, ""};
  return Submitted{SubmitAnswer::kSame, used.text(1)};
}

JobStore::Submitted JobStore::Impl::submit(const NewJob& job) {
  Database& database = sure();
  const int64_t now = host_.unix_ms();
  if (const auto known = earlier(job.owner, job.idempotency_key, job.request_hash)) return *known;
  // Jobs of a lower priority, as those of batches, take no client's place.
  if (run(database, "SELECT COUNT(*) FROM job WHERE state = 'queued' AND priority >= ?",
          job.priority) >= limits_.queued)
    return {SubmitAnswer::kFull, ""};
  if (!job.owner.empty() &&
      run(database, "SELECT COUNT(*) FROM job WHERE state = 'queued' AND owner = ?", job.owner) >=
          limits_.queued_per_owner)
    return {SubmitAnswer::kOwnerFull, ""};
  const int64_t wait = to_ms(job.deadline_seconds);
  const int64_t seq =
      *run(database,
           "INSERT INTO job(id, program, owner, request, resolved, client, idempotency_key, "
           "request_hash, priority, created, deadline, deadline_unix) "
           "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq",
           job.id, job.program, job.owner, job.request, job.resolved, job.client,
           job.idempotency_key, job.request_hash, job.priority, now,
           wait > 0 ? host_.boot_ms() + wait : 0, wait > 0 ? now + wait : 0);
  run(database, "INSERT INTO output(job, variant, path) VALUES (?, 0, ?)", seq, job.output);
  if (!job.idempotency_key.empty())
    run(database, "INSERT INTO idempotency VALUES (?, ?, ?, ?)", job.owner, job.idempotency_key,
        job.request_hash, seq);
  record(seq, JobState::kQueued, 0);
  return {SubmitAnswer::kNew, job.id};
}

CancelAnswer JobStore::cancel(const std::string& id) {
  const std::lock_guard lock(impl_->mutex_);
  Database& database = impl_->sure();
  Transaction transaction(database);
  Query found(database, "SELECT seq, state FROM job WHERE id = ?", id);
  if (!found.next()) return CancelAnswer::kUnknown;
  const JobState state = state_of(found.text(1));
  if (state == JobState::kCancelled) return CancelAnswer::kDone;
  if (is_over(state)) return CancelAnswer::kOver;
  const int64_t seq = found.integer(0);
  if (state == JobState::kQueued)
    impl_->finish_queued(seq, JobState::kCancelled);
  else
    run(database, "UPDATE job SET cancel_requested = 1 WHERE seq = ? AND state = 'running'", seq);
  transaction.commit();
  ++impl_->changes_;
  return state == JobState::kQueued ? CancelAnswer::kDone : CancelAnswer::kAsked;
}

bool JobStore::remove(const std::string& id) {
  const std::lock_guard lock(impl_->mutex_);
  ++impl_->changes_;
  return run(impl_->sure(),
             "DELETE FROM job WHERE id = ? AND state NOT IN ('queued', 'running') RETURNING seq",
             id)
      .has_value();
}

bool JobStore::discard(const std::string& id) {
  const std::lock_guard lock(impl_->mutex_);
  Database& database = impl_->sure();
  Transaction transaction(database);
  const auto seq = run(database,
                       "UPDATE job SET discarded = 1, cancel_requested = 1 WHERE id = ? AND "
                       "state = 'running' RETURNING seq",
                       id);
  if (!seq) return false;
  run(database, "DELETE FROM idempotency WHERE job = ?", *seq);
  transaction.commit();
  ++impl_->changes_;
  return true;
}

std::optional<StoredJob> JobStore::find(const std::string& id) const {
  const std::lock_guard lock(impl_->mutex_);
  static const std::string kSql = kSelectJob + "WHERE id = ?";
  Query query(impl_->sure(), kSql.c_str(), id);
  return query.next() ? std::optional(job_of(query)) : std::nullopt;
}

std::optional<JobStore::Page> JobStore::list(size_t limit, const std::string& after,
                                             bool newest_first, const std::string& prefix) const {
  const std::lock_guard lock(impl_->mutex_);
  static const std::string kNewest = kSelectJob +
                                     "WHERE (?1 = 0 OR seq < ?1) AND discarded = 0 AND id GLOB ?3 "
                                     "|| '*' ORDER BY seq DESC LIMIT ?2";
  static const std::string kOldest =
      kSelectJob + "WHERE seq > ?1 AND discarded = 0 AND id GLOB ?3 || '*' ORDER BY seq LIMIT ?2";
  int64_t from = 0;
  if (!after.empty()) {
    // A later job may have the number of one that was removed.
    const auto place = run(impl_->sure(),
                           newest_first ? "SELECT seq FROM job WHERE id = ?1 UNION ALL "
                                          "SELECT seq FROM gone WHERE id = ?1 LIMIT 1"
                                        : "SELECT seq FROM job WHERE id = ?1 UNION ALL "
                                          "SELECT seq - 1 FROM gone WHERE id = ?1 LIMIT 1",
                           after);
    if (!place) return std::nullopt;
    from = *place;
  }
  Query query(impl_->sure(), (newest_first ? kNewest : kOldest).c_str(), from,
              static_cast<int64_t>(limit) + 1, prefix);
  Page page;
  while (page.jobs.size() < limit && query.next()) page.jobs.push_back(job_of(query));
  page.has_more = query.next();
  return page;
}

std::vector<JobEvent> JobStore::events(const std::string& id, int64_t after) const {
  const std::lock_guard lock(impl_->mutex_);
  Query query(impl_->sure(),
              "SELECT n, type, data FROM event JOIN job ON seq = job WHERE id = ? AND n > ? "
              "ORDER BY n",
              id, after);
  std::vector<JobEvent> events;
  while (query.next()) events.push_back({query.integer(0), query.text(1), query.text(2)});
  return events;
}

std::vector<int64_t> JobStore::counts() const {
  const std::lock_guard lock(impl_->mutex_);
  std::vector<int64_t> counts(static_cast<size_t>(JobState::kExpired) + 1);
  Query query(impl_->sure(), "SELECT state, COUNT(*) FROM job GROUP BY state");
  while (query.next()) counts[static_cast<size_t>(state_of(query.text(0)))] = query.integer(1);
  return counts;
}

std::vector<StoredJob> JobStore::one_of_each_other(const std::string& program) const {
  const std::lock_guard lock(impl_->mutex_);
  static const std::string kSql =
      kSelectJob +
      "WHERE seq IN (SELECT MIN(seq) FROM job WHERE state IN ('queued', 'running') AND "
      "program <> ? GROUP BY program)";
  Query query(impl_->sure(), kSql.c_str(), program);
  std::vector<StoredJob> jobs;
  while (query.next()) jobs.push_back(job_of(query));
  return jobs;
}

int JobStore::change_program(const std::string& from, const std::string& to) {
  const std::lock_guard lock(impl_->mutex_);
  Transaction transaction(impl_->sure());
  run(impl_->sure(),
      "UPDATE job SET program = ? WHERE program = ? AND state IN ('queued', 'running')", to, from);
  const int64_t changed = *run(impl_->sure(), "SELECT changes()");
  transaction.commit();
  ++impl_->changes_;
  return static_cast<int>(changed);
}

int64_t JobStore::version() const {
  const std::lock_guard lock(impl_->mutex_);
  // SQLite counts the commits of other connections.
  return *run(impl_->sure(), "PRAGMA data_version") + impl_->changes_;
}

std::optional<int64_t> JobStore::next_claim_ms(const std::string& program) const {
  const std::lock_guard lock(impl_->mutex_);
  Query query(impl_->sure(),
              "SELECT COUNT(*), MIN(not_before) FROM job WHERE state = 'queued' AND program = ?",
              program);
  if (!query.next() || query.integer(0) == 0) return std::nullopt;
  return std::max(int64_t{0}, query.integer(1) - impl_->host_.boot_ms());
}

std::optional<Claim> JobStore::claim(const std::string& worker, const std::string& program) {
  const std::lock_guard lock(impl_->mutex_);
  // A look without the right to write, which many may take while there is nothing to do.
  static const std::string kNext =
      "SELECT seq FROM job WHERE state = 'queued' AND program = ?1 AND not_before <= ?2 AND "
      "(deadline = 0 OR deadline > ?2) ORDER BY priority DESC, seq LIMIT 1";
  static const std::string kClaim =
      "UPDATE job SET state = 'running', attempt = attempt + 1, worker = ?3, lease_until = ?4, "
      "started = ?5, deadline = 0, deadline_unix = 0 WHERE state = 'queued' AND seq = (" +
      kNext + ") RETURNING seq";
  static const std::string kRead = kSelectJob + "WHERE seq = ?";
  Database& database = impl_->sure();
  const int64_t boot = impl_->host_.boot_ms(), now = impl_->host_.unix_ms();
  if (!run(database, kNext.c_str(), program, boot)) return std::nullopt;
  Transaction transaction(database);
  const auto seq = run(database, kClaim.c_str(), program, boot, worker,
                       boot + to_ms(impl_->limits_.lease_seconds), now);
  if (!seq) return std::nullopt;
  Query query(database, kRead.c_str(), *seq);
  CHECK(query.next(), *seq);
  Claim claim{.stored = job_of(query), .worker = worker};
  const int attempt = claim.stored.attempt;
  run(database, "INSERT INTO attempt(job, n, worker, started) VALUES (?, ?, ?, ?)", *seq, attempt,
      worker, now);
  impl_->record(*seq, JobState::kRunning, attempt);
  transaction.commit();
  ++impl_->changes_;
  return claim;
}

HoldAnswer JobStore::renew(const Claim& claim, const std::string& progress) {
  const std::lock_guard lock(impl_->mutex_);
  const auto cancel =
      run(impl_->fast(),
          "UPDATE job SET lease_until = ?1, progress = CASE ?2 WHEN '' THEN progress ELSE ?2 "
          "END WHERE id = ?3 AND state = 'running' AND attempt = ?4 AND worker = ?5 "
          "RETURNING cancel_requested",
          impl_->host_.boot_ms() + to_ms(impl_->limits_.lease_seconds), progress,
          claim.stored.job.id, claim.stored.attempt, claim.worker);
  if (!cancel) return HoldAnswer::kLost;
  return *cancel != 0 ? HoldAnswer::kCancel : HoldAnswer::kHeld;
}

HoldAnswer JobStore::asked(const Claim& claim) const {
  const std::lock_guard lock(impl_->mutex_);
  const std::optional<Attempt> attempt = impl_->held(claim);
  if (!attempt) return HoldAnswer::kLost;
  return attempt->cancel_requested ? HoldAnswer::kCancel : HoldAnswer::kHeld;
}

bool JobStore::add_event(const Claim& claim, const std::string& type, const std::string& data) {
  const std::lock_guard lock(impl_->mutex_);
  Database& database = impl_->fast();
  Transaction transaction(database);
  const auto seq = run(database,
                       "SELECT seq FROM job WHERE id = ? AND state = 'running' AND attempt = ? AND "
                       "worker = ?",
                       claim.stored.job.id, claim.stored.attempt, claim.worker);
  if (!seq) return false;
  impl_->add_event(database, *seq, {.number = 0, .type = type, .data = data});
  transaction.commit();
  ++impl_->changes_;
  return true;
}

bool JobStore::complete(const Claim& claim, const std::string& result,
                        const std::string& warnings) {
  return impl_->if_held(claim, [&](const Attempt& attempt) {
    impl_->finish(attempt, {JobState::kCompleted, result, "", warnings});
  });
}

bool JobStore::fail(const Claim& claim, const std::string& error, const std::string& warnings) {
  return impl_->if_held(claim, [&](const Attempt& attempt) {
    impl_->finish(attempt, {JobState::kFailed, "", error, warnings});
  });
}

bool JobStore::stop(const Claim& claim) {
  return impl_->if_held(claim, [&](const Attempt& attempt) {
    impl_->finish(attempt, {.state = JobState::kCancelled});
  });
}

bool JobStore::give_back(const Claim& claim, const std::string& why) {
  return impl_->if_held(claim, [&](const Attempt& attempt) { impl_->try_again(attempt, why); });
}

bool JobStore::release(const Claim& claim) {
  return impl_->if_held(claim, [&](const Attempt& attempt) {
    if (attempt.cancel_requested)
      impl_->finish(attempt, {.state = JobState::kCancelled});
    else
      impl_->requeue(attempt, "released", false);
  });
}

std::vector<StoredJob> JobStore::tidy(std::vector<StoredJob>* ended) {
  const std::lock_guard lock(impl_->mutex_);
  if (!impl_->something_ended()) return {};
  Transaction transaction(impl_->sure());
  std::vector<int64_t> left = impl_->end_leases();
  const std::vector<int64_t> late = impl_->end_deadlines();
  left.insert(left.end(), late.begin(), late.end());
  std::vector<StoredJob> forgotten = impl_->forget();
  if (ended) *ended = impl_->over_among(left);
  transaction.commit();
  ++impl_->changes_;
  return forgotten;
}

bool JobStore::Impl::if_held(const Claim& claim,
                             const std::function<void(const Attempt&)>& change) {
  const std::lock_guard lock(mutex_);
  Transaction transaction(sure());
  const std::optional<Attempt> attempt = held(claim);
  if (!attempt) return false;
  change(*attempt);
  transaction.commit();
  ++changes_;
  return true;
}

std::optional<Attempt> JobStore::Impl::held(const Claim& claim) {
  Query query(sure(),
              "SELECT seq, spent, cancel_requested FROM job WHERE id = ? AND state = 'running' AND "
              "attempt = ? AND worker = ?",
              claim.stored.job.id, claim.stored.attempt, claim.worker);
  if (!query.next()) return std::nullopt;
  return Attempt{.seq = query.integer(0),
                 .number = claim.stored.attempt,
                 .spent = query.integer(1),
                 .worker = claim.worker,
                 .cancel_requested = query.integer(2) != 0};
}

// The event of a new state, and after the last one the event "end".
void JobStore::Impl::record(int64_t seq, JobState state, int64_t attempt) {
  const Json data{{"state", to_string(state)}, {"attempt", attempt}};
  add_event(sure(), seq, {.number = 0, .type = "state", .data = data.dump()});
  if (is_over(state)) add_event(sure(), seq, {.number = 0, .type = "end", .data = "{}"});
}

void JobStore::Impl::close_attempt(const Attempt& attempt, const std::string& outcome) {
  run(sure(), "UPDATE attempt SET ended = ?, outcome = ? WHERE job = ? AND n = ?", host_.unix_ms(),
      outcome, attempt.seq, attempt.number);
}

void JobStore::Impl::finish(const Attempt& attempt, const Ending& ending) {
  const int64_t now = host_.unix_ms();
  const auto changed =
      run(sure(),
          "UPDATE job SET state = ?1, error = ?2, warnings = ?3, finished = ?4, "
          "expires = CASE discarded WHEN 1 THEN ?4 ELSE ?5 END, lease_until = 0 WHERE seq = ?6 AND "
          "state = 'running' AND attempt = ?7 AND worker = ?8 "
          "RETURNING seq",
          to_string(ending.state), ending.error, ending.warnings, now, now + kept_ms(), attempt.seq,
          attempt.number, attempt.worker);
  CHECK(changed.has_value(), attempt.seq, attempt.number);
  if (!ending.result.empty())
    run(sure(), "UPDATE output SET result = ? WHERE job = ? AND variant = 0", ending.result,
        attempt.seq);
  close_attempt(attempt, to_string(ending.state));
  if (!ending.error.empty())
    add_event(sure(), attempt.seq, {.number = 0, .type = "error", .data = ending.error});
  record(attempt.seq, ending.state, attempt.number);
}

void JobStore::Impl::finish_queued(int64_t seq, JobState state) {
  const int64_t now = host_.unix_ms();
  const auto attempt = run(sure(),
                           "UPDATE job SET state = ?, finished = ?, expires = ?, deadline = 0 "
                           "WHERE seq = ? AND state = 'queued' RETURNING attempt",
                           to_string(state), now, now + kept_ms(), seq);
  CHECK(attempt.has_value(), seq);
  record(seq, state, *attempt);
}

void JobStore::Impl::requeue(const Attempt& attempt, const std::string& outcome, bool counts) {
  const int64_t spent = attempt.spent + (counts ? 1 : 0);
  const auto changed =
      run(sure(),
          "UPDATE job SET state = 'queued', spent = ?, not_before = ?, worker = '', "
          "lease_until = 0, started = 0, progress = '' "
          "WHERE seq = ? AND state = 'running' AND attempt = ? AND worker = ? RETURNING seq",
          spent, counts ? host_.boot_ms() + pause_ms(spent) : 0, attempt.seq, attempt.number,
          attempt.worker);
  CHECK(changed.has_value(), attempt.seq, attempt.number);
  close_attempt(attempt, outcome);
  record(attempt.seq, JobState::kQueued, attempt.number);
}

void JobStore::Impl::try_again(const Attempt& attempt, const std::string& why) {
  if (attempt.cancel_requested)
    finish(attempt, {.state = JobState::kCancelled});
  else if (attempt.spent + 1 >= limits_.attempts)
    finish(attempt, {JobState::kFailed, "", poisoned(attempt.spent + 1, why), ""});
  else
    requeue(attempt, why, true);
}

// A look without the right to write.
bool JobStore::Impl::something_ended() {
  const auto ended =
      run(sure(),
          "SELECT EXISTS (SELECT 1 FROM job WHERE state = 'running' AND lease_until <= ?1) OR "
          "EXISTS (SELECT 1 FROM job WHERE state = 'queued' AND deadline > 0 AND "
          "deadline <= ?1) OR EXISTS (SELECT 1 FROM job WHERE expires > 0 AND expires <= ?2)",
          host_.boot_ms(), host_.unix_ms());
  return ended != 0;
}

std::vector<int64_t> JobStore::Impl::end_leases() {
  std::vector<Attempt> ended;
  {
    Query query(sure(),
                "SELECT seq, attempt, spent, worker, cancel_requested FROM job "
                "WHERE state = 'running' AND lease_until <= ?",
                host_.boot_ms());
    while (query.next())
      ended.push_back({query.integer(0), query.integer(1), query.integer(2), query.text(3),
                       query.integer(4) != 0});
  }
  std::vector<int64_t> changed;
  for (const Attempt& attempt : ended) {
    try_again(attempt, "its worker was not heard of any more");
    changed.push_back(attempt.seq);
  }
  return changed;
}

std::vector<int64_t> JobStore::Impl::end_deadlines() {
  std::vector<int64_t> ended;
  {
    Query query(sure(),
                "SELECT seq FROM job WHERE state = 'queued' AND deadline > 0 AND deadline <= ?",
                host_.boot_ms());
    while (query.next()) ended.push_back(query.integer(0));
  }
  for (const int64_t seq : ended) finish_queued(seq, JobState::kExpired);
  return ended;
}

std::vector<StoredJob> JobStore::Impl::over_among(const std::vector<int64_t>& jobs) {
  static const std::string kRead =
      kSelectJob + "WHERE seq = ? AND state NOT IN ('queued', 'running')";
  std::vector<StoredJob> over;
  for (const int64_t seq : jobs) {
    Query query(sure(), kRead.c_str(), seq);
    if (query.next()) over.push_back(job_of(query));
  }
  return over;
}

std::vector<StoredJob> JobStore::Impl::forget() {
  static const std::string kOver = "WHERE expires > 0 AND expires <= ?1 ORDER BY expires LIMIT ?2";
  static const std::string kRead =
      kSelectJob + "WHERE job.seq IN (SELECT seq FROM job " + kOver + ")";
  static const std::string kForget =
      "DELETE FROM job WHERE seq IN (SELECT seq FROM job " + kOver + ")";
  const int64_t now = host_.unix_ms();
  std::vector<StoredJob> forgotten;
  {
    Query query(sure(), kRead.c_str(), now, kMostForgotten);
    while (query.next()) forgotten.push_back(job_of(query));
  }
  run(sure(), kForget.c_str(), now, kMostForgotten);
  return forgotten;
}

}  // namespace weft
