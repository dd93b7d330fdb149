#include "engine/service/service.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "engine/service/job_failure.h"
#include "engine/service/job_watch.h"
#include "engine/service/running_job.h"
#include "engine/service/sqlite.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kAskEvery{50};     // whether to give up waiting for a job
constexpr milliseconds kLookEvery{1000};  // for jobs and cancels of other processes
constexpr milliseconds kNewsEvery{250};   // of running jobs
constexpr milliseconds kTidyEvery{2000};

milliseconds part_of_lease(const StoreLimits& limits, int parts, milliseconds most) {
  return std::min(most, milliseconds(std::llround(limits.lease_seconds * 1000 / parts)));
}

// Another connection may hold the lock for longer than a statement waits. Then it is tried again.
template <class Body>
auto past_locks(Body&& body) {
  for (;;) try {
      return body();
    } catch (const DatabaseError& error) {
      if (!error.locked()) throw;
    }
}

}  // namespace

struct Service::Impl {
  Impl(const Settings& settings, const StoreHost& host)
      : settings_(settings),
        store_(settings.store, settings.limits, host),
        keeper_([this](const std::stop_token& stop) { keep(stop); }),
        teller_([this](const std::stop_token& stop) { tell(stop); }) {}

  std::shared_ptr<RunningJob> running(const std::string& id) const;
  std::vector<std::shared_ptr<RunningJob>> all_running() const;
  void forget_running(const RunningJob& job);
  std::unique_ptr<HeldJob> try_take(const std::string& team, const std::string& program);
  void changed();  // wakes who waits for jobs and who tells of events
  void tell_end(const std::string& id);
  void drain();

  // The thread that renews leases, writes warnings, reads cancels and tidies.
  void keep(const std::stop_token& stop);
  void keep_job(RunningJob& job, bool store_changed);
  bool tidy();  // true where more is to be forgotten
  // The thread that calls watchers.
  void tell(const std::stop_token& stop);
  bool tell_all();
  // Runs a part of such a thread's work. What fails is reported, and tried again later.
  template <class Body>
  void attempt(Body&& body);

  const Settings settings_;
  JobStore store_;
  std::mutex cancelling_;     // so that the end of a cancelled job is told once
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable_any woken_;
  std::map<std::string, std::shared_ptr<RunningJob>> running_;
  std::multimap<std::string, std::weak_ptr<PreviewWish>> wishes_;  // by the id of their job
  std::vector<std::shared_ptr<JobWatch>> watches_;
  int64_t news_ = 0;  // grows with every change that this process makes or sees
  bool draining_ = false, stopping_ = false;
  std::string warned_{};          // the last warning, which is not repeated
  std::jthread keeper_, teller_;  // declared last, because they use the members above
};

class Service::Watch {
 public:
  explicit Watch(std::shared_ptr<JobWatch> watch) : watch_(std::move(watch)) {}
  ~Watch() { watch_->close(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  std::shared_ptr<JobWatch> watch_;
};

namespace {

// The job of a team. Each of its ends is a call of the store, which the store refuses where the
// claim was lost.
class Held final : public HeldJob {
 public:
  struct Owner {
    JobStore& store;
    double deadline_seconds;
    std::function<void(const RunningJob&, bool ended)> left;
  };
  Held(std::shared_ptr<RunningJob> running, Owner owner)
      : running_(std::move(running)), owner_(std::move(owner)) {}
  ~Held() override;

  const StoredJob& job() const override { return running_->claim().stored; }
  const std::atomic<bool>& stop() const override { return running_->stop; }
  ProgressListener& listener() override { return *running_; }
  int wanted_previews() const override { return running_->wanted_previews(); }
  void complete(const std::string& result) override;
  void fail(const Error& error) override;

 private:
  void fail_with(const JobFailure& failure);
  bool asked_to_stop();
  // Ends the claim by `write`, after the warnings were written.
  template <class Write>
  void leave(Write&& write);

  const std::shared_ptr<RunningJob> running_;
  const Owner owner_;
  bool left_ = false;
};

template <class Write>
void Held::leave(Write&& write) {
  const bool ended = past_locks([&] {
    running_->write_log(owner_.store);
    return write();
  });
  left_ = true;
  owner_.left(*running_, ended);
}

Held::~Held() {
  if (left_) return;
  try {
    leave([&] { return owner_.store.give_back(running_->claim(), "its team ended"); });
  } catch (const std::exception&) {
    owner_.left(*running_, false);  // its lease will end
  }
}

void Held::complete(const std::string& result) {
  leave([&] {
    owner_.store.renew(running_->claim(), running_->finished_progress());
    return owner_.store.complete(running_->claim(), result, running_->warnings());
  });
}

void Held::fail(const Error& error) {
  const Claim& claim = running_->claim();
  if (error.kind() == ErrorKind::kComm)
    return leave([&] { return owner_.store.give_back(claim, failure_of(error).message); });
  if (error.kind() != ErrorKind::kStopped) return fail_with(failure_of(error));
  if (asked_to_stop()) return leave([&] { return owner_.store.stop(claim); });
  if (running_->late)
    return fail_with({.code = "deadline_exceeded",
                      .message = "it ran for longer than " + Json(owner_.deadline_seconds).dump() +
                                 " s, which a job may"});
  leave([&] { return owner_.store.release(claim); });
}

void Held::fail_with(const JobFailure& failure) {
  leave([&] {
    return owner_.store.fail(running_->claim(), to_json(failure).dump(), running_->warnings());
  });
}

bool Held::asked_to_stop() {
  return running_->cancelled || owner_.store.asked(running_->claim()) == HoldAnswer::kCancel;
}

}  // namespace

Service::Service(const Settings& settings, const StoreHost& host)
    : impl_(std::make_unique<Impl>(settings, host)) {}

Service::~Service() { drain(); }

JobStore& Service::store() { return impl_->store_; }

JobStore::Submitted Service::submit(const NewJob& job) { return submit_all({&job, 1}).back(); }

std::vector<JobStore::Submitted> Service::submit_all(std::span<const NewJob> jobs) {
  std::vector<JobStore::Submitted> submitted = impl_->store_.submit_all(jobs);
  if (!submitted.empty() && !is_refusal(submitted.back().answer)) impl_->changed();
  return submitted;
}

CancelAnswer Service::cancel(const std::string& id) {
  CancelAnswer answer{};
  bool ended = false;
  {
    const std::lock_guard lock(impl_->cancelling_);
    const std::optional<StoredJob> before = impl_->store_.find(id);
    answer = impl_->store_.cancel(id);
    ended = answer == CancelAnswer::kDone && before && !is_over(before->state);
  }
  if (const auto running = impl_->running(id); running && answer == CancelAnswer::kAsked) {
    running->cancelled = true;
    running->stop = true;
  }
  if (ended) impl_->tell_end(id);
  impl_->changed();
  return answer;
}

bool Service::remove(const std::string& id) {
  const std::optional<StoredJob> job = impl_->store_.find(id);
  if (!job || !impl_->store_.remove(id)) return false;
  if (impl_->settings_.forgotten) impl_->settings_.forgotten(*job);
  impl_->changed();
  return true;
}

std::optional<StoredJob> Service::find(const std::string& id) const {
  std::optional<StoredJob> job = impl_->store_.find(id);
  return job && !job->discarded ? std::move(job) : std::nullopt;
}

bool Service::discard(const std::string& id) {
  if (!find(id)) return false;
  cancel(id);
  // A job that was asked to stop never waits again: it runs, or it is over.
  if (!impl_->store_.discard(id)) remove(id);
  return true;
}

std::optional<LiveJob> Service::live(const std::string& id) const {
  const auto running = impl_->running(id);
  return running ? std::optional(running->live()) : std::nullopt;
}

std::shared_ptr<PreviewWish> Service::want_previews(const std::string& id, int count) {
  auto wish = std::make_shared<PreviewWish>(count);
  const std::lock_guard lock(impl_->mutex_);
  std::erase_if(impl_->wishes_, [](const auto& entry) { return entry.second.expired(); });
  impl_->wishes_.emplace(id, wish);
  const auto running = impl_->running_.find(id);
  if (running != impl_->running_.end()) running->second->add_wish(wish);
  return wish;
}

std::shared_ptr<Service::Watch> Service::watch(const std::string& id, int64_t after,
                                               std::function<void(const JobEvent&)> heard) {
  if (!impl_->store_.find(id)) return nullptr;
  auto watch = std::make_shared<JobWatch>(id, after, std::move(heard));
  {
    const std::lock_guard lock(impl_->mutex_);
    impl_->watches_.push_back(watch);
  }
  impl_->changed();
  return std::make_shared<Watch>(std::move(watch));
}

std::unique_ptr<HeldJob> Service::take(const std::string& team, const std::string& program,
                                       const std::function<bool()>& give_up) {
  int64_t seen_news = -1, seen_version = -1;
  Clock::time_point look_at{}, due = Clock::time_point::max();
  for (;;) {
    const Clock::time_point now = Clock::now();
    int64_t news = 0;
    {
      const std::lock_guard lock(impl_->mutex_);
      if (impl_->draining_) return nullptr;
      news = impl_->news_;
    }
    if (give_up && give_up()) return nullptr;
    bool look = news != seen_news || now >= due;
    if (!look && now >= look_at) {
      look_at = now + kLookEvery;
      look = impl_->store_.version() != seen_version;
    }
    if (look) {
      seen_news = news;
      seen_version = impl_->store_.version();
      look_at = now + kLookEvery;
      if (auto held = impl_->try_take(team, program)) return held;
      const std::optional<int64_t> wait = impl_->store_.next_claim_ms(program);
      due = wait ? now + std::max(kAskEvery, milliseconds(*wait)) : Clock::time_point::max();
    }
    std::unique_lock lock(impl_->mutex_);
    const Clock::time_point until = std::min(due, now + (give_up ? kAskEvery : kLookEvery));
    impl_->woken_.wait_until(lock, until,
                             [&] { return impl_->news_ != seen_news || impl_->draining_; });
  }
}

void Service::drain() { impl_->drain(); }

void Service::stop_running() {
  impl_->drain();
  const std::lock_guard lock(impl_->mutex_);
  impl_->stopping_ = true;  // also for a job that a team is about to take
  for (const auto& [id, running] : impl_->running_) running->stop = true;
}

std::shared_ptr<RunningJob> Service::Impl::running(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  return found == running_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<RunningJob>> Service::Impl::all_running() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<RunningJob>> all;
  for (const auto& [id, running] : running_) all.push_back(running);
  return all;
}

// Another team of this process may hold the job by now, if the claim was lost.
void Service::Impl::forget_running(const RunningJob& job) {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(job.claim().stored.job.id);
  if (found != running_.end() && found->second.get() == &job) running_.erase(found);
}

std::unique_ptr<HeldJob> Service::Impl::try_take(const std::string& team,
                                                 const std::string& program) {
  std::optional<Claim> claim = past_locks([&] { return store_.claim(team, program); });
  if (!claim) return nullptr;
  auto running = std::make_shared<RunningJob>(std::move(*claim));
  {
    const std::lock_guard lock(mutex_);
    auto& place = running_[running->claim().stored.job.id];
    if (place) place->stop = true;  // another team still draws it, whose lease has ended
    place = running;
    running->stop = stopping_;
    const auto [begin, end] = wishes_.equal_range(running->claim().stored.job.id);
    for (auto wish = begin; wish != end; ++wish)
      if (const auto alive = wish->second.lock()) running->add_wish(alive);
  }
  changed();
  const auto left = [this](const RunningJob& job, bool ended) {
    forget_running(job);
    if (ended) tell_end(job.claim().stored.job.id);
    changed();
  };
  auto held =
      std::make_unique<Held>(running, Held::Owner{store_, settings_.job_deadline_seconds, left});
  // A client may have cancelled it before it stood among the running ones.
  if (store_.asked(running->claim()) == HoldAnswer::kCancel) {
    running->cancelled = true;
    running->stop = true;
  }
  return held;
}

void Service::Impl::changed() {
  {
    const std::lock_guard lock(mutex_);
    ++news_;
  }
  woken_.notify_all();
}

void Service::Impl::tell_end(const std::string& id) {
  if (!settings_.ended) return;
  const std::optional<StoredJob> job = store_.find(id);
  if (job && is_over(job->state)) settings_.ended(*job);
}

void Service::Impl::drain() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = true;
  }
  woken_.notify_all();
}

template <class Body>
void Service::Impl::attempt(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    const std::string line = error.what();
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(warned_, line) == line) return;
    }
    if (settings_.warned) settings_.warned(line);
  }
}

void Service::Impl::keep(const std::stop_token& stop) {
  const milliseconds tick = part_of_lease(settings_.limits, 6, kNewsEvery);
  const milliseconds tidy_every = part_of_lease(settings_.limits, 3, kTidyEvery);
  Clock::time_point tidy_at{}, look_at{};
  int64_t version = -1;
  while (!stop.stop_requested()) {
    const Clock::time_point now = Clock::now();
    const auto running = all_running();
    bool store_changed = false;
    if (!running.empty() && now >= look_at) {
      look_at = now + kLookEvery;
      attempt([&] {
        const int64_t before = std::exchange(version, store_.version());
        store_changed = version != before;
      });
    }
    for (const auto& job : running) attempt([&] { keep_job(*job, store_changed); });
    // The leases of this process come first, so that a pause of it does not end them.
    if (now >= tidy_at) {
      tidy_at = now + tidy_every;
      attempt([&] { tidy_at = tidy() ? now : tidy_at; });
    }
    std::unique_lock lock(mutex_);
    const bool idle = running_.empty();
    woken_.wait_until(lock, stop, std::min(tidy_at, now + (idle ? tidy_every : tick)),
                      [&] { return idle && !running_.empty(); });
  }
}

void Service::Impl::keep_job(RunningJob& job, bool store_changed) {
  if (settings_.job_deadline_seconds > 0 && job.seconds() > settings_.job_deadline_seconds) {
    job.late = true;
    job.stop = true;
  }
  job.write_log(store_);
  const Clock::time_point now = Clock::now();
  HoldAnswer answer = HoldAnswer::kHeld;
  if (now >= job.renewed + part_of_lease(settings_.limits, 6, milliseconds::max())) {
    answer = store_.renew(job.claim(), job.live().progress);
    job.renewed = now;
  } else if (store_changed) {
    answer = store_.asked(job.claim());
  }
  if (answer == HoldAnswer::kCancel) job.cancelled = true;
  if (answer != HoldAnswer::kHeld) job.stop = true;
}

bool Service::Impl::tidy() {
  std::vector<StoredJob> ended;
  const std::vector<StoredJob> forgotten = store_.tidy(&ended);
  for (const StoredJob& job : ended)
    if (settings_.ended) attempt([&] { settings_.ended(job); });
  for (const StoredJob& job : forgotten)
    if (settings_.forgotten) attempt([&] { settings_.forgotten(job); });
  return std::ssize(forgotten) == JobStore::kMostForgotten;
}

void Service::Impl::tell(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::unique_lock lock(mutex_);
    const auto news = [this, seen = news_] { return news_ != seen; };
    lock.unlock();
    bool watched = true;  // also where it fails
    attempt([&] { watched = tell_all(); });
    lock.lock();
    if (watched)
      woken_.wait_for(lock, stop, kNewsEvery, news);
    else
      woken_.wait(lock, stop, news);
  }
}

// Returns whether anyone watches still.
bool Service::Impl::tell_all() {
  std::vector<std::shared_ptr<JobWatch>> watches;
  {
    const std::lock_guard lock(mutex_);
    watches = watches_;
  }
  if (watches.empty()) return false;
  const int64_t version = store_.version();
  for (const auto& watch : watches) {
    const auto job = running(watch->id());
    if (watch->tell(store_, version, job.get())) continue;
    const std::lock_guard lock(mutex_);
    std::erase(watches_, watch);
  }
  const std::lock_guard lock(mutex_);
  return !watches_.empty();
}

}  // namespace weft
