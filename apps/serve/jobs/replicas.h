#pragma once
// Replicas: the teams of a server that are threads of its process. Each takes a job, draws it and
// takes the next.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "apps/serve/metrics.h"
#include "engine/service/service.h"

namespace weft {

// Draws a job on the calling thread and returns its result as JSON (JobTeam::draw()). It throws
// Error, of the kind kStopped where it ended because `stop` became true.
using DrawJob = std::function<std::string(const StoredJob& job, ProgressListener& listener,
                                          const std::atomic<bool>& stop)>;

// Draws a job that a team holds, and ends it with the result or the failure.
void draw_held(HeldJob& held, const DrawJob& draw);

// Counts what replicas do, in metrics with the label `replica`.
class ReplicaMetrics {
 public:
  explicit ReplicaMetrics(Metrics& metrics) : metrics_(metrics) {}
  void waits(const std::string& replica);  // for a job
  void begins(const std::string& replica, const StoredJob& job);
  void ended(const StoredJob& job);  // for good

 private:
  Metrics& metrics_;
};

class Replicas {
 public:
  // The replicas are "0", "1" and so on. `service` and `metrics` outlive this.
  Replicas(Service& service, ReplicaMetrics& metrics, const std::string& program,
           std::vector<DrawJob> draws);
  ~Replicas();  // returns when each has ended, after a drain of the service

 private:
  void work(const std::string& name, const std::string& program, const DrawJob& draw);
  bool draw_next(const std::string& name, const std::string& program, const DrawJob& draw);

  Service& service_;
  ReplicaMetrics& metrics_;
  std::vector<std::thread> threads_;
};

}  // namespace weft
