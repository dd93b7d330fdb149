#include "apps/serve/jobs/memory_check.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "apps/serve/jobs/job_submission.h"
#include "engine/memory/memory_advice.h"
#include "engine/planning/machine.h"
#include "engine/planning/remembered.h"
#include "engine/service/job_failure.h"

namespace weft {
namespace {

JobFailure memory_failure(const std::string& line) {
  return failure_of(Error(ErrorKind::kMemory, line));
}

// A client can change its request, but not the server's flags.
void put_changes_of_request_first(std::vector<std::string>& hints) {
  std::ranges::stable_partition(hints, [](const std::string& hint) {
    return hint.starts_with("--num-frames ") || hint.starts_with("--size ");
  });
}

}  // namespace

// A kind of job that does not fit.
class MemoryCheck::Misfit {
 public:
  Misfit(std::shared_ptr<Generator> rank, Request request, const MemoryPlan& plan)
      : rank_(std::move(rank)),
        request_(std::move(request)),
        told_(memory_failure(shortage(plan))) {}

  bool is_whole() const {
    const std::lock_guard lock(mutex_);
    return is_whole_;
  }
  // The refusal, with hints where they were found. Never waits while they are sought.
  HttpResponse response() const {
    const std::lock_guard lock(mutex_);
    return error_response(422, "does_not_fit", told_.message, "", told_.hints);
  }
  // Finds what would fit, the first time, which plans many other jobs. By one thread alone.
  void seek_hints() {
    if (!rank_) return;
    std::vector<std::string> hints;
    without_throwing([&] { hints = memory_failure(rank_->refusal(request_)).hints; });
    put_changes_of_request_first(hints);
    rank_.reset();
    const std::lock_guard lock(mutex_);
    told_.hints = std::move(hints);
    is_whole_ = true;
  }

 private:
  std::shared_ptr<Generator> rank_;  // until hints were sought
  const Request request_;
  mutable std::mutex mutex_;  // guards the members below
  JobFailure told_;
  bool is_whole_ = false;
};

void MemoryCheck::check(const Request& resolved) {
  if (others_draw_()) return;
  const auto misfit =
      remembered(known_, forecast_facts(planner_, resolved), [&] { return misfit_of(resolved); });
  if (!misfit) return;
  const HttpResponse now = misfit->response();
  if (misfit->is_whole()) throw JobRefused(now);
  const auto later = [misfit] {
    misfit->seek_hints();
    return misfit->response();
  };
  throw JobRefused(planning_.answer(later, now));
}

std::shared_ptr<MemoryCheck::Misfit> MemoryCheck::misfit_of(const Request& resolved) const {
  try {
    const auto layout = runner_.given_layout(planner_.layout_limits(resolved));
    if (!layout) return nullptr;
    std::shared_ptr<Generator> rank = planner_.planning_rank(*layout);
    const MemoryPlan plan = rank->plan(resolved);
    if (plan.fits()) return nullptr;
    return std::make_shared<Misfit>(std::move(rank), resolved, plan);
  } catch (const std::exception&) {  // who draws the job tells why it cannot be drawn
    return nullptr;
  }
}

}  // namespace weft
