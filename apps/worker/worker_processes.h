#pragma once
// WorkerProcesses: starts the workers of a server as processes, and starts a team anew whose
// processes ended: after a pause that doubles with each end that no job came before.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/worker/worker_host.h"

namespace weft {

// The arguments of a weft worker that computes as the flags of a weft serve say.
std::vector<std::string> worker_arguments(const Flags& flags);

class WorkerProcesses {
 public:
  struct Settings {
    std::string program = "/proc/self/exe";
    std::vector<std::string> arguments{};  // after "worker"
    std::string join{}, key{};             // of the server
    int teams = 1, processes = 1;          // of each team; several meet over UCX
    double first_pause_s = 0.5, longest_pause_s = 30;
    // Calls with a line that a worker wrote, or that is about one. On any thread.
    std::function<void(const std::string& worker, const std::string& line)> told{};
  };
  explicit WorkerProcesses(Settings settings);
  // Sends SIGTERM to all, so that they end in good order, and SIGKILL to those that have not ended
  // after some seconds.
  ~WorkerProcesses();

  void drain();  // a team that ends is not started again

  void heard(const std::string& worker, WorkerEvent event);  // as WorkerHost::Settings::heard
  int ready() const;                                         // teams that take jobs now
  // True where no team is ready, and each of them has ended five times in a row before it was.
  bool hopeless() const;

 private:
  struct Team {
    std::string name{};
    bool ready = false, was_ready = false;  // now; since it was started
    int unused_ends = 0;                    // in a row, without a job in between
    int unready_ends = 0;                   // in a row, before it was ready
    std::thread thread{};
  };
  struct Running;
  void keep(Team& team);
  void start(const Team& team, Running& running) const;
  void await_end(const Team& team, Running& running);
  bool pause(double seconds);
  bool shall_end() const;

  const Settings settings_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<Team> teams_;
  bool shall_end_ = false, is_draining_ = false;
};

}  // namespace weft
