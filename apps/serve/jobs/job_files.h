#pragma once
// The files of a server's jobs, all in the folder of its results.
#include <string>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"
#include "engine/service/job_store.h"

namespace weft {

class JobFiles {
 public:
  JobFiles(const Flags& flags, std::string folder) : flags_(flags), folder_(std::move(folder)) {}

  // Removes the result of a job, its sidecar, what an interrupted run left, and what was sent.
  void remove(const NewJob& job) const;
  // Removes what a job that will not go on has left of its run.
  void remove_leftovers(const NewJob& job) const;
  // Removes the hidden files of jobs that `store` does not know and that nothing can resume, as a
  // server that was killed leaves them.
  void remove_orphans(const JobStore& store) const;
  // The result of a job that an earlier attempt completed without telling it, as JSON; "" where
  // there is none, and then nothing stands in the way of a new one.
  std::string result_left(const NewJob& job, const Generator& generator) const;

 private:
  const Flags& flags_;
  const std::string folder_;
};

// While it exists, this is the only server of a store, unless another one was there before.
class OnlyServer {
 public:
  explicit OnlyServer(const std::string& store);  // "": of jobs in memory, always the only one
  ~OnlyServer();
  OnlyServer(const OnlyServer&) = delete;
  OnlyServer& operator=(const OnlyServer&) = delete;
  bool alone() const { return alone_; }

 private:
  int lock_ = -1;
  bool alone_ = true;
};

// Lets the jobs wait again that a server which was killed has held; only the only server may do it.
// An attempt that left a checkpoint does not count as a failed one, a few times.
void recover_jobs(JobStore& store);

}  // namespace weft
