#include "apps/serve/jobs/memory_check.h"

#include <mutex>
#include <optional>
#include <utility>

#include "apps/serve/jobs/job_submission.h"
#include "engine/planning/machine.h"
#include "engine/planning/remembered.h"
#include "engine/service/job_failure.h"

namespace weft {

// A kind of job that does not fit.
class MemoryCheck::Misfit {
 public:
  Misfit(std::shared_ptr<Generator> rank, Request request)
      : rank_(std::move(rank)), request_(std::move(request)) {}

  bool is_told() const {
    const std::lock_guard lock(mutex_);
    return told_.has_value();
  }
  // Finds what would fit, the first time, which plans many other jobs.
  HttpResponse response() {
    const std::lock_guard lock(mutex_);
    if (!told_) told_ = failure_of(Error(ErrorKind::kMemory, rank_->refusal(request_)));
    rank_.reset();
    return error_response(422, "does_not_fit", told_->message, "", told_->hints);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Generator> rank_;
  const Request request_;
  std::optional<JobFailure> told_{};
};

void MemoryCheck::check(const Request& resolved) {
  const auto misfit =
      remembered(known_, forecast_facts(planner_, resolved), [&] { return misfit_of(resolved); });
  if (!misfit) return;
  throw JobRefused(misfit->is_told() ? misfit->response()
                                     : tasks_.answer([misfit] { return misfit->response(); }));
}

std::shared_ptr<MemoryCheck::Misfit> MemoryCheck::misfit_of(const Request& resolved) const {
  try {
    const auto layout = runner_.given_layout(planner_.layout_limits(resolved));
    if (!layout) return nullptr;
    std::shared_ptr<Generator> rank = planner_.planning_rank(*layout);
    if (rank->plan(resolved).fits()) return nullptr;
    return std::make_shared<Misfit>(std::move(rank), resolved);
  } catch (const Error&) {  // who draws the job tells why it cannot be drawn
    return nullptr;
  }
}

}  // namespace weft
