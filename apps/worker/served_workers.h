#pragma once
// ServedWorkers: the replicas of a server that are processes: those that it starts itself, as
// --workers says, and those that join it by hand (weft worker --join).
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/serve/jobs/replicas.h"
#include "apps/serve/server_routes.h"
#include "apps/worker/worker_host.h"
#include "apps/worker/worker_processes.h"

namespace weft {

// --workers threads: a server's replicas are teams of its own process, and it starts no workers.
bool starts_workers(const Flags& flags);

class ServedWorkers {
 public:
  struct Settings {
    const Flags& flags;  // of the server
    const Flags& team;   // of one replica
    int replicas = 1;
    std::string folder{};  // of the results
    // It is asked what WorkerHost::Settings::result_left is, by one thread at a time.
    std::function<std::string(const StoredJob&)> result_left{};
    Service& service;
    ReplicaMetrics& metrics;
    ServerState& state;
  };
  // Error(kUsage) for workers that could not reach the server, or each other.
  explicit ServedWorkers(const Settings& settings);
  ~ServedWorkers();

  WebSocketRoute route();
  // Starts --replicas workers, or none, and keeps the server's readiness from then on.
  void start(uint16_t port);
  // Waits until one of them takes jobs. False where `give_up` returned true, which is asked every
  // 50 ms.
  bool await_ready(const std::function<bool()>& give_up);
  int drawing();      // workers that have a job, or may get one
  void drain();       // workers that end are not started again
  void await_jobs();  // returns when no worker has a job, after a drain of the service
  void await_end();   // ends those that the server started

 private:
  void heard(const std::string& worker, WorkerEvent event);
  void told(const std::string& worker, const std::string& line);
  void look_after_readiness();

  const Settings settings_;
  const std::string key_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::unique_ptr<WorkerProcesses> processes_;
  bool was_hopeless_ = false;
  std::mutex left_mutex_;  // held while result_left() is asked
  WorkerHost host_;        // last, because its threads use the members above
};

}  // namespace weft
