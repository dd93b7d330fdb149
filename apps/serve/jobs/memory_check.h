#pragma once
// MemoryCheck: refuses jobs that do not fit into the memory of those who draw them here, before
// they wait for their turn.
#include <map>
#include <memory>
#include <string>

#include "apps/serve/http/work_queue.h"
#include "engine/generation/generator.h"
#include "engine/runner/job_runner.h"

namespace weft {

class MemoryCheck {
 public:
  // Jobs are drawn by teams like `runner`. `planner` was made before they loaded weights, and
  // belongs to the thread that calls this. All three outlive it.
  MemoryCheck(const Generator& planner, const JobRunner& runner, WorkQueue& tasks)
      : planner_(planner), runner_(runner), tasks_(tasks) {}

  // Throws JobRefused, 422 with up to three changes that would do, of a resolved request that does
  // not fit on the first rank. What would do is found by `tasks`. Lets all pass of which nothing is
  // known before they are drawn, as where the layout is chosen by a simulation.
  void check(const Request& resolved);

 private:
  class Misfit;
  std::shared_ptr<Misfit> misfit_of(const Request& resolved) const;

  const Generator& planner_;
  const JobRunner& runner_;
  WorkQueue& tasks_;
  std::map<std::string, std::shared_ptr<Misfit>> known_;  // by forecast_facts(); null: it fits
};

}  // namespace weft
