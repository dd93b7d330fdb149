#include "apps/serve/jobs/replicas.h"

#include <algorithm>
#include <chrono>

#include "engine/runner/job_errors.h"

namespace weft {
namespace {

double seconds_between(int64_t begin_ms, int64_t end_ms) {
  constexpr double kMilliseconds = 1000;
  return static_cast<double>(std::max(end_ms - begin_ms, int64_t{0})) / kMilliseconds;
}

}  // namespace

void draw_held(HeldJob& held, const DrawJob& draw) {
  std::string result;
  try {
    result = draw(held.job(), held.listener(), held.stop());
  } catch (...) {
    return held.fail(current_error());
  }
  held.complete(result);
}

void ReplicaMetrics::waits(const std::string& replica) {
  metrics_.set("weft_jobs_running", 0, {{"replica", replica}});
}

void ReplicaMetrics::begins(const std::string& replica, const StoredJob& job) {
  metrics_.set("weft_jobs_running", 1, {{"replica", replica}});
  if (job.attempt > 1) return;  // it has waited before
  metrics_.observe("weft_job_wait_seconds", seconds_between(job.created_ms, job.started_ms),
                   {{"replica", replica}});
}

void ReplicaMetrics::ended(const StoredJob& job) {
  if (job.started_ms == 0) return;
  metrics_.observe("weft_job_duration_seconds", seconds_between(job.started_ms, job.finished_ms),
                   {{"replica", job.worker}, {"state", to_string(job.state)}});
}

Replicas::Replicas(Service& service, ReplicaMetrics& metrics, const std::string& program,
                   std::vector<DrawJob> draws)
    : service_(service), metrics_(metrics) {
  for (size_t i = 0; i < draws.size(); ++i)
    threads_.emplace_back([this, name = std::to_string(i), program, draw = std::move(draws[i])] {
      work(name, program, draw);
    });
}

Replicas::~Replicas() {
  for (std::thread& thread : threads_) thread.join();
}

void Replicas::work(const std::string& name, const std::string& program, const DrawJob& draw) {
  constexpr std::chrono::seconds kPause{1};  // where the store cannot be written
  metrics_.waits(name);
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = draw_next(name, program, draw);
    } catch (const std::exception&) {  // the service warns of it
      std::this_thread::sleep_for(kPause);
    }
    metrics_.waits(name);
  }
}

// False where there are no more jobs.
bool Replicas::draw_next(const std::string& name, const std::string& program, const DrawJob& draw) {
  const std::unique_ptr<HeldJob> held = service_.take(name, program);
  if (!held) return false;
  metrics_.begins(name, held->job());
  draw_held(*held, draw);
  return true;
}

}  // namespace weft
