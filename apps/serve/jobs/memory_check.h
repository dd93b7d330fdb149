#pragma once
// MemoryCheck: refuses jobs that do not fit into the memory of those who draw them here, before
// they wait for their turn.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "apps/serve/http/work_queue.h"
#include "engine/generation/generator.h"
#include "engine/runner/job_runner.h"

namespace weft {

class MemoryCheck {
 public:
  // Jobs are drawn by teams like `runner`, and while `others_draw` returns true, by others of which
  // nothing is known. `planner` was made before the teams loaded weights, and belongs to the thread
  // that calls this. `planning` finds what would do. All outlive this.
  MemoryCheck(const Generator& planner, const JobRunner& runner, WorkQueue& planning,
              std::function<bool()> others_draw)
      : planner_(planner),
        runner_(runner),
        planning_(planning),
        others_draw_(std::move(others_draw)) {}

  // Throws JobRefused, 422 with up to three changes that would do, of a resolved request that does
  // not fit on the first rank; without them where `planning` has no place. Lets all pass of which
  // nothing is known before they are drawn, as where the layout is chosen by a simulation, and
  // those that cannot be planned.
  void check(const Request& resolved);

 private:
  class Misfit;
  std::shared_ptr<Misfit> misfit_of(const Request& resolved) const;

  const Generator& planner_;
  const JobRunner& runner_;
  WorkQueue& planning_;
  const std::function<bool()> others_draw_;
  std::map<std::string, std::shared_ptr<Misfit>> known_;  // by forecast_facts(); null: it fits
};

}  // namespace weft
