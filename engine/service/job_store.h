#pragma once
// JobStore: the jobs of a service in an SQLite database, which survives its processes. Several
// processes of one host may open the same file. Everything may be called from any thread.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/service/store_host.h"

namespace weft {

// queued -> running -> completed, failed or cancelled; running -> queued, when it is tried again;
// queued -> cancelled or expired. The last four are final.
enum class JobState : uint8_t { kQueued, kRunning, kCompleted, kFailed, kCancelled, kExpired };
const char* to_string(JobState state);
inline bool is_over(JobState state) { return state > JobState::kRunning; }

struct StoreLimits {
  int queued = 256;           // of no lower priority than a new one
  int queued_per_owner = 32;  // of an owner with a name
  int attempts = 3;           // a job whose lease ended so often failed: "poisoned"
  double lease_seconds = 30;
  // Jobs that are over are kept for so long, whoever ends them. Unset: as the last one that opened
  // the store stated it, and at first 24 hours.
  std::optional<double> kept_seconds{};
  int events_per_job = 500;
};

struct NewJob {
  std::string id{};
  std::string program{};   // what draws it: workers take jobs of their own program alone
  std::string owner{};     // who sent it; "" for anyone
  std::string request{};   // JSON, as it was sent
  std::string resolved{};  // JSON of the whole JobSpec
  std::string client{};    // JSON of what the client's route has to answer; "": nothing
  std::string output{};    // the path of its result
  std::string idempotency_key{}, request_hash{};  // "": none
  int priority = 0;                               // higher ones first
  double deadline_seconds = 0;  // after which a job that did not begin expires; 0: none
};

struct StoredJob {
  NewJob job{};
  JobState state = JobState::kQueued;
  int attempt = 0;  // that runs or ran last, from 1; 0: none yet
  std::string worker{};
  bool cancel_requested = false;
  bool discarded = false;  // nobody is to see it any more; it is forgotten when it is over
  std::string progress{}, result{}, error{}, warnings{};  // JSON; "": none
  // Unix time; 0: not yet. The start is that of the last attempt; expires_ms is when a job that is
  // over will be forgotten.
  int64_t created_ms = 0, started_ms = 0, finished_ms = 0, expires_ms = 0;
  // From 1 among the queued jobs of its program, and their number; 0: not queued.
  int position = 0, depth = 0;
};

// A job that a worker holds. What it writes counts only while the attempt is still its own.
struct Claim {
  StoredJob stored{};
  std::string worker{};
};

struct JobEvent {
  int64_t number = 0;  // of the job, from 1
  std::string type{};  // state, progress, log, output, error, end
  std::string data{};  // JSON
};

enum class SubmitAnswer : uint8_t { kNew, kSame, kConflict, kFull, kOwnerFull };
inline bool is_refusal(SubmitAnswer answer) { return answer > SubmitAnswer::kSame; }
enum class HoldAnswer : uint8_t { kHeld, kCancel, kLost };  // kCancel: held, but it shall stop
enum class CancelAnswer : uint8_t { kDone, kAsked, kUnknown, kOver };

// Every call may throw Error(kOutput): the disk is full, the file is locked for too long, ...
class JobStore {
 public:
  // "" keeps the jobs in memory. Error(kUsage) where the file lies on a network file system, was
  // made by a newer version or is damaged; kOutput where it cannot be made.
  explicit JobStore(const std::string& path, const StoreLimits& limits = {},
                    const StoreHost& host = {});
  ~JobStore();

  // Answers kSame and the id of the earlier job where the owner has used the idempotency key
  // before, kConflict where that request was another.
  struct Submitted {
    SubmitAnswer answer;
    std::string id;
  };
  Submitted submit(const NewJob& job);
  // All of them or, where one is refused, none: the last answer is then the refusal.
  std::vector<Submitted> submit_all(std::span<const NewJob> jobs);
  // Answers as submit() would because the owner has used the key before; nullopt: it has not.
  std::optional<Submitted> earlier(const std::string& owner, const std::string& key,
                                   const std::string& request_hash);
  CancelAnswer cancel(const std::string& id);  // a running one is asked to stop
  bool remove(const std::string& id);          // false unless it is over
  bool discard(const std::string& id);         // false unless it runs; it is asked to stop, too

  std::optional<StoredJob> find(const std::string& id) const;
  struct Page {
    std::vector<StoredJob> jobs;
    bool has_more = false;
  };
  // Those that are not discarded and whose ids begin with `prefix`, from the one after `after` on;
  // "" is from the first. The places of the last 10,000 jobs that were removed are known, too.
  // nullopt where there is no such job.
  std::optional<Page> list(size_t limit, const std::string& after, bool newest_first = true,
                           const std::string& prefix = "") const;
  std::vector<JobEvent> events(const std::string& id, int64_t after) const;
  // By state, of all programs.
  std::vector<int64_t> counts() const;
  // One job of each other program that has some which are not over.
  std::vector<StoredJob> one_of_each_other(const std::string& program) const;
  // Makes the jobs of a program that are not over those of another, and returns their number.
  int change_program(const std::string& from, const std::string& to);
  // Changes whenever this or another process has changed something. Asking costs next to nothing.
  int64_t version() const;
  // Milliseconds until the first queued job of the program may be claimed; nullopt: there is none.
  std::optional<int64_t> next_claim_ms(const std::string& program) const;

  // For workers. Each write returns whether the attempt was still the worker's own.
  std::optional<Claim> claim(const std::string& worker, const std::string& program);
  HoldAnswer renew(const Claim& claim, const std::string& progress = "");
  HoldAnswer asked(const Claim& claim) const;  // the same answer without a renewal
  bool add_event(const Claim& claim, const std::string& type, const std::string& data);
  bool complete(const Claim& claim, const std::string& result, const std::string& warnings);
  bool fail(const Claim& claim, const std::string& error, const std::string& warnings);
  bool stop(const Claim& claim);  // a client cancelled it
  // Tries again later, after a pause that grows with the attempts; fails where these are used up.
  bool give_back(const Claim& claim, const std::string& why);
  // The same without counting the attempt and without a pause: the worker ends in good order.
  bool release(const Claim& claim);

  // Requeues jobs whose lease has ended and expires queued ones after their deadline. Returns what
  // was forgotten because its time is over, whose files are then of no use. `ended` receives the
  // jobs that expired, failed or were cancelled thereby. One call forgets at most kMostForgotten,
  // so that its memory does not grow with their number; a call that returns so many left others.
  static constexpr int64_t kMostForgotten = 64;
  std::vector<StoredJob> tidy(std::vector<StoredJob>* ended = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
