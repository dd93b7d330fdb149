#pragma once
// The files of jobs that stand in a store, and who uses the store. Those of a server's jobs are all
// in the folder of its results; those of a batch's jobs belong to the batch.
#include <atomic>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/worker/job_team.h"
#include "engine/generation/generator.h"
#include "engine/service/job_store.h"

namespace weft {

// The owners of the jobs of batches begin with this. API keys are hashes, which never do.
inline constexpr const char* kBatchOwner = "batch:";

class StoreUser;

class JobFiles {
 public:
  JobFiles(const Flags& flags, std::string folder) : flags_(flags), folder_(std::move(folder)) {}

  // Removes the result of a job, its sidecar, what an interrupted run left, and what was sent. The
  // files of a batch's job stay.
  void remove(const NewJob& job) const;
  // Removes what a job that will not go on has left of its run, unless it is a batch's.
  void remove_leftovers(const NewJob& job) const;
  // Removes the hidden files of jobs that `store` does not know and that nothing can resume, as a
  // server that was killed leaves them. Where `user` is alone with the store, also what was sent
  // with jobs that it does not know and that have no result.
  void remove_orphans(const JobStore& store, const StoreUser& user) const;
  // Returns when no earlier attempt writes the job's output any more, as one does whose lease has
  // ended in the middle of a long step. Error(kStopped).
  static void await_writer(const NewJob& job, const std::atomic<bool>& stop);
  // The result of a job that an earlier attempt completed without telling it, as JSON; "" where
  // there is none. Half a result of an earlier attempt is removed.
  std::string result_left(const StoredJob& stored, const Generator& generator) const;
  // The result that an earlier attempt left, or that of JobTeam::draw(), with its errors.
  std::string drawn(JobTeam& team, const StoredJob& stored, ProgressListener& listener,
                    const std::atomic<bool>& stop) const;

 private:
  const Flags& flags_;
  const std::string folder_;
};

// A process that uses a store, until this ends: a server, or a batch.
class StoreUser {
 public:
  explicit StoreUser(const std::string& store);  // "": of jobs in memory, which nobody else uses
  ~StoreUser();
  StoreUser(const StoreUser&) = delete;
  StoreUser& operator=(const StoreUser&) = delete;
  // To be called before this process takes a job. Where no other process used the store when this
  // was made, the jobs that a killed one has held wait again; else their leases end by time. An
  // attempt that left a checkpoint does not count as a failed one, a few times.
  void recover(JobStore& store);
  // Before recover(): no other process uses the store, and it lies in this folder, which ends in /,
  // so that the folder's jobs are its own. False of jobs in memory.
  bool is_alone_in(const std::string& folder) const {
    return alone_ && lock_ >= 0 && folder == folder_;
  }

 private:
  int lock_ = -1;               // exclusive until recover(), then shared
  const std::string folder_{};  // of the store, with / at its end
  bool alone_ = true;
};

}  // namespace weft
