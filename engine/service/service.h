#pragma once
// Service: jobs that clients submit, and the teams of ranks that draw them. A team is a thread of
// this process, a worker process, or a replica of the processes that a launcher started; all of
// them take jobs here. Everything may be called from any thread.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/job/options.h"
#include "engine/service/job_store.h"
#include "engine/service/preview_wish.h"
#include "kernels/check.h"

namespace weft {

// A job in the hands of a team. Its destructor gives the job back unless it was ended.
class HeldJob {
 public:
  virtual ~HeldJob() = default;
  virtual const StoredJob& job() const = 0;
  // Becomes true where a client cancelled the job, its deadline is over, the service ends, or the
  // claim was lost.
  virtual const std::atomic<bool>& stop() const = 0;
  // Progress, previews and warnings of the run. Never waits for the disk.
  virtual ProgressListener& listener() = 0;
  virtual void complete(const std::string& result) = 0;  // JSON of a JobResult
  // kStopped is a cancel where a client asked for one, else the job is released for later. kComm
  // gives it back for another attempt. Any other kind fails it.
  virtual void fail(const Error& error) = 0;
  // The previews that clients wait for (want_previews), evenly spaced; for one who draws elsewhere.
  virtual int wanted_previews() const { return 0; }
};

// A view of what a job does now, newer than what the store has.
struct LiveJob {
  std::string progress{};  // JSON
  int preview_number = 0;  // 0: none yet
  std::shared_ptr<const std::string> preview_png{};
  int preview_step = 0, preview_steps = 0;
};

class Service {
 public:
  struct Settings {
    std::string store{};  // path; "" in memory
    StoreLimits limits{};
    double job_deadline_seconds = 0;  // of a running job; 0: none
    // After a job is over, on any thread; and for one whose files are to be removed. A job that
    // another process ended is told there.
    std::function<void(const StoredJob&)> ended{}, forgotten{};
    // One line, where a thread of the service cannot do its work: the disk is full, ... It tries
    // again.
    std::function<void(const std::string&)> warned{};
  };
  // Error as the constructor of JobStore.
  explicit Service(const Settings& settings, const StoreHost& host = {});
  ~Service();  // drains; the held jobs must be gone

  JobStore& store();
  JobStore::Submitted submit(const NewJob& job);
  std::vector<JobStore::Submitted> submit_all(std::span<const NewJob> jobs);  // as JobStore does
  CancelAnswer cancel(const std::string& id);
  bool remove(const std::string& id);
  // The job that clients see: nullopt also for one that was discarded.
  std::optional<StoredJob> find(const std::string& id) const;
  // Removes a job, whether it is over or not. One that runs is hidden at once, stops after its step
  // and is then forgotten. False where clients see no such job.
  bool discard(const std::string& id);
  std::optional<LiveJob> live(const std::string& id) const;  // nullopt: it does not run here
  // Keeps previews of a job, which may be submitted later, as long as the wish lives. They are made
  // by jobs that run here with previews, whatever time they take.
  std::shared_ptr<PreviewWish> want_previews(const std::string& id, int count);

  // Calls `heard` with each event of the job after `after`, those of the past first, on a thread of
  // the service, until the watch is destroyed or the event "end". Progress comes at most four times
  // a second; it and previews are not stored and have the number 0. `heard` is quick and does not
  // throw. The end of a watch waits for a call of it. Null where there is no such job.
  //   state {"state","attempt"}, log {"level","message"}, error {"code","message","hints"}, end {},
  //   progress {"percent","stage","step","steps","s_per_step","eta_s"}, preview {"step","steps"}
  class Watch;
  std::shared_ptr<Watch> watch(const std::string& id, int64_t after,
                               std::function<void(const JobEvent&)> heard);

  // Waits for a job of this program. Null once the service drains, or `give_up` returns true, which
  // is asked every 50 ms. Error(kOutput) where the store cannot be written.
  std::unique_ptr<HeldJob> take(const std::string& team, const std::string& program,
                                const std::function<bool()>& give_up = nullptr);

  void drain();         // take() returns null from now on; running jobs go on
  void stop_running();  // drains, and stops the jobs that run; they go on at the next start

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
